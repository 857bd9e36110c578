// SPDX-License-Identifier: Apache-2.0
//
// Plan: a transfer prepared once and posted many times. A post allocates nothing, takes no lock and
// enters the kernel only to wake a sleeping peer. (A post that goes on after the call has a record,
// which later posts use again: memory is taken only when more records are held than ever before.)
// Only one thread at a time may post a plan. Each post has its own status, callbacks and
// descriptor. A plan of GPU memory is enqueued on a stream (where the driver does take locks); up
// to 1024 posts of it may be under way at once. Context::metrics() counts posts in groups of up to
// 64.
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

  // Posts all blocks. kTryAgain while the last post still runs. Errors as for put/get.
  Result<Transfer> post();
  // Posts block localIndex[i] against remoteIndex[i]; adjacent runs become one copy. Errors before
  // anything moves: kInvalidArgument (lengths differ, 0 or too many blocks, a number out of range
  // or twice at the destination).
  Result<Transfer> post(std::span<const uint32_t> localIndex,
                        std::span<const uint32_t> remoteIndex);

  // Plans of GPU memory: posts on a stream; an empty stream means one of the library's own, which
  // the two above use as well. kTryAgain when too many posts are under way. The call reads the
  // numbers before it returns.
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
  std::shared_ptr<StagedPlan> staged_;  // or where no link reaches the memory
};

}  // namespace peerlane
