// SPDX-License-Identifier: Apache-2.0
//
// ChunkMap: which chunks of one region of a peer are mapped here. Addresses are reserved for all of
// them at once, so that copies run across their borders; each is mapped at its place when a
// transfer first touches it, and stays until the whole map goes. Knows neither devices nor who is
// asked. A chunk that could not be had stays so. Any thread, but map() and fail() one at a time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "peerlane/core/mutex.h"
#include "peerlane/core/status.h"
#include "peerlane/memory/chunk_runs.h"
#include "peerlane/memory/vmm_handle.h"

namespace peerlane {

// Addresses that chunks are put at. Its destruction takes all of it away, and requires that nothing
// that touches it is under way.
class ChunkSpace {
 public:
  virtual ~ChunkSpace() = default;
  virtual std::byte* data() const = 0;
  // Maps chunks side by side from `offset` on; in case of an error none of them. As many sizes as
  // handles, whose descriptors are closed.
  virtual Status map(uint64_t offset, std::span<const uint64_t> sizes,
                     std::vector<VmmHandle> handles) = 0;
};

class ChunkMap {
 public:
  struct Range {
    uint64_t first = 0;
    uint64_t count = 0;
    friend bool operator==(const Range&, const Range&) = default;
  };

  // A region of `bytes` that begins `offset` bytes behind the first chunk's begin. Requires: it
  // lies in the chunks and ends in the last one.
  ChunkMap(ChunkRuns runs, uint64_t offset, uint64_t bytes, std::unique_ptr<ChunkSpace> space);

  // The region's first byte.
  std::byte* data() const { return space_->data() + offset_; }
  uint64_t count() const { return runs_.count(); }
  uint64_t mapped() const { return mapped_.load(std::memory_order_relaxed); }
  bool complete() const { return mapped_.load(std::memory_order_acquire) == runs_.count(); }

  // Ranges of the region: inside it, and not empty.
  // All of it is mapped. Takes no lock; true stays true.
  bool covers(uint64_t offset, uint64_t bytes) const;
  // The chunks of it that nobody has asked for yet; the caller does so now.
  std::vector<Range> ask(uint64_t offset, uint64_t bytes);
  // Some chunk, anywhere, will not come.
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // Why part of it will not come; OK as long as all may.
  Status failure(uint64_t offset, uint64_t bytes) const;

  // Chunks that were asked for have come, or will not.
  Status map(uint64_t first, std::vector<VmmHandle> handles);
  void fail(Range range, const Status& why);

 private:
  enum class State : uint8_t { kMissing, kAsked, kMapped, kFailed };
  Range chunksOf(uint64_t offset, uint64_t bytes) const;
  State state(uint64_t index) const { return states_[index].load(std::memory_order_acquire); }

  const ChunkRuns runs_;
  const uint64_t offset_;
  const std::unique_ptr<ChunkSpace> space_;
  const std::unique_ptr<std::atomic<State>[]> states_;  // release by map(), acquire by posters
  std::atomic<uint64_t> mapped_{0};
  std::atomic<bool> failed_{false};
  mutable Mutex mutex_;
  Status why_ PEERLANE_GUARDED_BY(mutex_);  // of the first failure
};

}  // namespace peerlane
