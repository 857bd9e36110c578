// SPDX-License-Identifier: Apache-2.0
#include "integrations/nixl/block_lists.h"

#include <algorithm>
#include <utility>

namespace peerlane::nixl {

std::vector<Block> BlockLists::take(size_t blocks) {
  std::vector<Block> list;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    // The last one that fits is the warmest.
    const auto found = std::find_if(kept_.rbegin(), kept_.rend(),
                                    [&](const auto& kept) { return kept.capacity() >= blocks; });
    if (found != kept_.rend()) {
      list = std::move(*found);
      keptBlocks_ -= list.capacity();
      kept_.erase(std::next(found).base());
    }
  }
  list.reserve(blocks);
  return list;
}

void BlockLists::giveBack(std::vector<Block> list) {
  constexpr size_t kShort = 64;  // cheaper to make than to keep
  list.clear();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (list.capacity() < kShort || list.capacity() > kMostBlocks - keptBlocks_) return;
  keptBlocks_ += list.capacity();
  kept_.push_back(std::move(list));
}

}  // namespace peerlane::nixl
