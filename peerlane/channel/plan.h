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

#include "peerlane/channel/transfer.h"

namespace peerlane {

class PlanCore;
class DevicePlan;
class StagedPlan;

// Blocks that are named by number with every post: block i lies at offset + i * stride.
struct IndexedBlocks {
  const Region* local = nullptr;
  uint64_t localOffset = 0;
  uint64_t localStride = 0;  // 0: blocks touch
  uint64_t localCount = 0;   // blocks in the region: numbers below this are accepted
  const RemoteRegion* remote = nullptr;
  uint64_t remoteOffset = 0;
  uint64_t remoteStride = 0;  // 0: blocks touch
  uint64_t remoteCount = 0;
  uint64_t blockBytes = 0;
  uint64_t maxBlocksPerPost = 0;
};

enum class Direction : uint8_t { kPut, kGet };

struct PlanOptions {
  // Added to the peer's signal once the bytes of a post are visible (puts only).
  std::optional<uint32_t> signal{};
  uint64_t signalAdd = 1;
  // How long create() may wait for regions that are not imported yet.
  std::chrono::nanoseconds timeout = std::chrono::seconds(10);
  Engine engine = Engine::kAuto;  // GPU memory: who copies
  uint32_t ctas = 0;              // as PostOptions::ctas
};

// Block numbers that lie in memory of the GPU, and are read when the stream gets there. Numbers
// that are out of range are left out, and the transfer ends with kInvalidArgument.
struct DeviceIndexList {
  const uint32_t* local = nullptr;
  const uint32_t* remote = nullptr;
  uint64_t count = 0;
};

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
