// SPDX-License-Identifier: Apache-2.0
//
// ChunkMap: which chunks of one region of a peer are mapped here. Addresses are reserved for all of
// them at once, so that one copy can run across their borders. Each chunk is mapped at its place
// when a transfer first touches it, and stays mapped until the map is destroyed. The class knows
// neither devices nor the connection that asks for chunks. A chunk that could not be mapped is not
// tried again. Any thread, but map() and fail() one at a time.
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

// The reserved addresses that chunks are mapped at. Its destruction unmaps all chunks and frees the
// addresses. Requires: no work that touches them is under way then.
class ChunkSpace {
 public:
  virtual ~ChunkSpace() = default;
  virtual std::byte* data() const = 0;
  // Maps chunks side by side from `offset` on; after an error none of them is mapped. Requires: as
  // many sizes as handles. Closes the handles' descriptors.
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

  // A region of `bytes` that begins `offset` bytes after the begin of the first chunk. Requires: it
  // lies in the chunks and ends in the last one.
  ChunkMap(ChunkRuns runs, uint64_t offset, uint64_t bytes, std::unique_ptr<ChunkSpace> space);

  // The region's first byte.
  std::byte* data() const { return space_->data() + offset_; }
  uint64_t count() const { return runs_.count(); }
  uint64_t mapped() const { return mapped_.load(std::memory_order_relaxed); }
  bool complete() const { return mapped_.load(std::memory_order_acquire) == runs_.count(); }

  // The ranges of the next calls must lie inside the region and must not be empty. True when all of
  // the range is mapped; it then stays true. Takes no lock.
  bool covers(uint64_t offset, uint64_t bytes) const;
  // The chunks of the range that no caller has asked for yet. This caller must ask for them now.
  std::vector<Range> ask(uint64_t offset, uint64_t bytes);
  // True when some chunk of the region could not be mapped.
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // Why part of the range could not be mapped; OK while none has failed.
  Status failure(uint64_t offset, uint64_t bytes) const;

  // Chunks that were asked for have arrived (map), or will not arrive (fail).
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
