// SPDX-License-Identifier: Apache-2.0
//
// Plan: a transfer prepared once and posted many times. Posting allocates nothing, takes no lock
// and enters the kernel only to wake a sleeping peer (posts that go on after the call are told of
// by records that are used again, so memory is taken when more of them are held than ever before).
// One thread at a time posts a plan. Each post has its own status, callbacks and descriptor.
// A plan of GPU memory is enqueued on a stream (in which the driver does take locks); up to 1024
// posts of it may be under way at once.
// Context::metrics() hears of posts in groups of up to 64.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "peerlane/channel/transfer/transfer.h"

namespace peerlane {

class PlanCore;
class DevicePlan;
class StagedPlan;

class Plan {
 public:
  Plan() = default;

  // Checks, imports and lowers everything. Errors as for put/get.
  static Result<Plan> create(const Peer& peer, Direction direction, std::span<const Block> blocks,
                             const PlanOptions& options = {});
  static Result<Plan> create(const Peer& peer, Direction direction, const StridedBlocks& blocks,
                             const PlanOptions& options = {});
  static Result<Plan> create(const Peer& peer, Direction direction, const IndexedBlocks& blocks,
                             const PlanOptions& options = {});

  // Posts everything. kTryAgain while the last post still runs. Errors as for put/get.
  Result<Transfer> post();
  // Posts block localIndex[i] against remoteIndex[i]; adjacent runs become one copy. Errors before
  // anything moves: kInvalidArgument (lengths differ, 0 or too many blocks, a number out of range
  // or twice at the destination).
  Result<Transfer> post(std::span<const uint32_t> localIndex,
                        std::span<const uint32_t> remoteIndex);

  // Plans of GPU memory: on a stream; none means one of the library's own. The two above use that
  // as well. kTryAgain when too many posts are under way. The numbers are read during the call.
  Result<Transfer> post(DeviceStream stream);
  Result<Transfer> post(std::span<const uint32_t> localIndex, std::span<const uint32_t> remoteIndex,
                        DeviceStream stream);
  Result<Transfer> post(const DeviceIndexList& indices, DeviceStream stream);

  explicit operator bool() const { return core_ || device_ || staged_; }

 private:
  template <typename Blocks>
  static Result<Plan> make(const Peer& peer, Direction direction, const Blocks& blocks,
                           const PlanOptions& options);
  std::shared_ptr<PlanCore> core_;
  std::shared_ptr<DevicePlan> device_;  // instead, for GPU memory
  std::shared_ptr<StagedPlan> staged_;  // or for what cannot go straight
};

}  // namespace peerlane
