// SPDX-License-Identifier: Apache-2.0
//
// BlockLists: lists of blocks that ended requests left, for the next ones. Memory of a long list
// that is new costs a page fault for each hundred of its blocks, 30 ns a block, and giving it back
// as much again; a program makes such a request for each step of its model. Thread-safe.
#pragma once

#include <cstddef>
#include <deque>
#include <mutex>
#include <vector>

#include "peerlane/channel/blocks/blocks.h"

namespace peerlane::nixl {

class BlockLists {
 public:
  // Shorter ones are cheaper to make than to keep; longer ones cost little beside their transfer.
  static constexpr size_t kShortest = 512, kLongest = size_t{1} << 18;
  static constexpr size_t kMostKept = 8;  // of 10 MiB at most

  // An empty list with room for so many.
  std::vector<Block> take(size_t blocks);
  void giveBack(std::vector<Block> list) noexcept;

 private:
  std::mutex mutex_;
  std::deque<std::vector<Block>> kept_;  // the oldest first
};

}  // namespace peerlane::nixl
