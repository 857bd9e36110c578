// SPDX-License-Identifier: Apache-2.0
//
// DevicePlan: a plan of GPU memory. Its descriptors lie in the device's memory; a post is one
// launch. Many posts may be under way at once, on one stream or several; each has its own end, told
// in the order of posting. Thread-safe, but the caller must order the posts.
#pragma once

#include <array>
#include <atomic>
#include <memory>

#include "peerlane/channel/blocks/block_program.h"
#include "peerlane/channel/blocks/index_check.h"
#include "peerlane/channel/blocks/plan_gates.h"
#include "peerlane/channel/transfer/plan_post.h"
#include "peerlane/channel/transfer/transfer.h"
#include "peerlane/core/mutex.h"
#include "peerlane/program/device/device_executor.h"
#include "peerlane/program/device/device_health.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {

class DevicePlan final : public Task, public std::enable_shared_from_this<DevicePlan> {
 public:
  static constexpr uint32_t kMostPosts = 1024;

  static Result<std::shared_ptr<DevicePlan>> create(const std::shared_ptr<PeerCore>& peer,
                                                    DeviceExecutor& executor, BlockProgram blocks,
                                                    const PlanOptions& options);
  DevicePlan(std::shared_ptr<PeerCore> peer, DeviceExecutor& executor, BlockProgram blocks)
      : peer_(std::move(peer)),
        progress_(peer_->progress()),
        executor_(executor),
        blocks_(std::move(blocks)) {}
  ~DevicePlan() override;

  Result<Transfer> post(DeviceStream stream);
  Result<Transfer> post(std::span<const uint32_t> local, std::span<const uint32_t> remote,
                        DeviceStream stream);
  Result<Transfer> post(const DeviceIndexList& indices, DeviceStream stream);

  Turn turn() override;
  std::string describe() const override;

 private:
  struct Posted {
    DevicePost post;
    std::shared_ptr<PlanPost> told;  // null: it is just being posted
    uint64_t bytes = 0;
  };

  Status prepare(const PlanOptions& options);
  bool isIndexed() const { return blocks_.layout().kind == CopyLayout::Kind::kIndexed; }
  Result<Transfer> enqueue(DeviceStream stream, const DeviceIndices& indices);
  Status endOf(const Posted& posted) const;

  const std::shared_ptr<PeerCore> peer_;
  Progress& progress_;
  DeviceExecutor& executor_;
  BlockProgram blocks_;
  OwnedNotify notify_;
  IndexCheck indexCheck_;
  std::unique_ptr<DeviceProgram> program_;
  PlanGates gates_{*peer_};

  // Held while a post is made, for as long as the driver blocks the poster; no turn takes it.
  Mutex postingMutex_;
  mutable Mutex mutex_;
  std::array<Posted, kMostPosts> ring_ PEERLANE_GUARDED_BY(mutex_);
  uint64_t posted_ PEERLANE_GUARDED_BY(mutex_) = 0;  // number of the last post
  uint64_t seen_ PEERLANE_GUARDED_BY(mutex_) = 0;    // number of the last one that has ended
  uint64_t bytesUnderWay_ PEERLANE_GUARDED_BY(mutex_) = 0;
  bool active_ PEERLANE_GUARDED_BY(mutex_) = false;  // a task of the progress engine
  Status broken_ PEERLANE_GUARDED_BY(mutex_);        // of the device
  DeviceHealth health_ PEERLANE_GUARDED_BY(mutex_);
  Counter* bytesCounter_ = nullptr;
};

}  // namespace peerlane
