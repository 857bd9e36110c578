// SPDX-License-Identifier: Apache-2.0
//
// BlockLists: lists of blocks that ended requests left, for the next ones. Memory of a long list
// that is new costs a page fault for each hundred of its blocks, 30 ns a block, and giving it back
// as much again; a program makes such a request for each step of its model. Thread-safe.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

#include "peerlane/channel/blocks/blocks.h"

namespace peerlane::nixl {

class BlockLists {
 public:
  // Of all lists that are kept.
  static constexpr size_t kMostBlocks = size_t{1} << 20;  // 40 MiB

  // An empty list with room for so many.
  std::vector<Block> take(size_t blocks);
  void giveBack(std::vector<Block> list);

 private:
  std::mutex mutex_;
  std::vector<std::vector<Block>> kept_;
  size_t keptBlocks_ = 0;  // the room of all of them
};

}  // namespace peerlane::nixl
