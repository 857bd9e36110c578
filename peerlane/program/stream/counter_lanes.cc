// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/stream/counter_lanes.h"

#include <algorithm>

namespace peerlane::stream {

CounterLanes::Claim CounterLanes::claim(std::byte* line, const StreamLane& lane, uint64_t number,
                                        uint64_t add) {
  Words& words = lines_[line];
  const auto drained = [](const Word& word) {
    return word.lane == nullptr ||
           word.lane->completion->load(std::memory_order_acquire) >= word.lastNumber;
  };
  auto chosen = std::find_if(words.begin(), words.end(),
                             [&](const Word& word) { return word.lane == &lane; });
  if (chosen == words.end()) chosen = std::find_if(words.begin(), words.end(), drained);
  // All are busy with other streams: line up behind the one that was posted to least.
  if (chosen == words.end())
    chosen = std::min_element(words.begin(), words.end(), [](const Word& a, const Word& b) {
      return a.lane->posted - a.lastNumber > b.lane->posted - b.lastNumber;
    });
  Claim claim;
  if (chosen->lane != &lane && !drained(*chosen)) {
    claim.after = chosen->lane;
    claim.afterNumber = chosen->lastNumber;
  }
  chosen->lane = &lane;
  chosen->lastNumber = number;
  chosen->total += add;
  const auto index = static_cast<size_t>(chosen - words.begin()) + 1;
  claim.word = reinterpret_cast<uint64_t*>(line) + index;
  claim.total = chosen->total;
  return claim;
}

void CounterLanes::undo(std::byte* line, const Claim& claim, uint64_t add) {
  const auto index = static_cast<size_t>(claim.word - reinterpret_cast<uint64_t*>(line)) - 1;
  lines_.at(line)[index].total -= add;
}

void CounterLanes::forget(const std::byte* address, size_t bytes) {
  std::erase_if(lines_, [&](const auto& entry) {
    return entry.first >= address && entry.first < address + bytes;
  });
}

}  // namespace peerlane::stream
