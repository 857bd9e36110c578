// SPDX-License-Identifier: Apache-2.0
#include "integrations/nixl/block_lists.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace peerlane::nixl {

std::vector<Block> BlockLists::take(size_t blocks) {
  constexpr size_t kMuchTooLong = 4;
  std::vector<Block> list;
  if (blocks >= kShortest) {
    const std::lock_guard<std::mutex> lock(mutex_);
    // The last one that fits is the warmest.
    const auto found = std::find_if(kept_.rbegin(), kept_.rend(), [&](const auto& kept) {
      return kept.capacity() >= blocks && kept.capacity() / kMuchTooLong <= blocks;
    });
    if (found != kept_.rend()) {
      list = std::move(*found);
      kept_.erase(std::next(found).base());
    }
  }
  list.reserve(blocks);
  return list;
}

void BlockLists::giveBack(std::vector<Block> list) noexcept {
  if (list.capacity() < kShortest || list.capacity() > kLongest) return;
  list.clear();
  try {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (kept_.size() == kMostKept) kept_.pop_front();
    kept_.push_back(std::move(list));
  } catch (const std::exception&) {  // no memory to keep it
  }
}

}  // namespace peerlane::nixl
