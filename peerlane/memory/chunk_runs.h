// SPDX-License-Identifier: Apache-2.0
//
// ChunkRuns: the sizes of the chunks that make up a range of memory side by side, as runs of equal
// sizes: thousands of chunks of one size take 16 bytes. docs/wire.md, "Memory in chunks". Plain
// value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "peerlane/core/status.h"

namespace peerlane {

class ChunkRuns {
 public:
  static constexpr size_t kMostRuns = 256;             // 4 KiB, the longest blob of a message
  static constexpr uint64_t kMostChunks = 1ull << 20;  // 2 TiB in chunks of 2 MiB

  struct Place {
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };

  // One more chunk at the end. Requires: bytes above 0, and fits().
  void add(uint64_t bytes);
  // Whether both limits above hold.
  bool fits() const { return runs_.size() <= kMostRuns && count_ <= kMostChunks; }

  uint64_t count() const { return count_; }
  uint64_t bytes() const { return bytes_; }
  // Requires: index below count().
  Place at(uint64_t index) const;
  // The chunk that `offset` lies in. Requires: offset below bytes().
  uint64_t indexOf(uint64_t offset) const;
  // "64 chunks of 2 MiB", "12 chunks of 2 to 20 MiB".
  std::string text() const;

  // Requires: fits().
  std::vector<std::byte> encode() const;
  // kCorrupt naming the defect: a wrong length, no run or more than kMostRuns, a run without chunks
  // or bytes, more than kMostChunks, sizes whose sum exceeds 64 bits.
  static Result<ChunkRuns> decode(std::span<const std::byte> blob);

 private:
  struct Run {
    uint64_t bytes;  // of each
    uint64_t count;
    uint64_t firstIndex;
    uint64_t firstOffset;
  };
  std::vector<Run> runs_;
  uint64_t count_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace peerlane
