// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/stream/graph_words.h"

#include <string>
#include <utility>

namespace peerlane::stream {

void GraphWords::adopt(std::byte* memory, size_t count) {
  const std::lock_guard lock(mutex_);
  count_ = count;
  // Taken from the back: the first words first.
  for (size_t i = count; i-- > 0;) clean_.push_back(memory + i * kBytes);
}

Result<std::byte*> GraphWords::take(const std::function<Status(std::byte*, size_t)>& zero) {
  const std::lock_guard lock(mutex_);
  while (clean_.empty() && !used_.empty()) {
    PEERLANE_RETURN_IF_ERROR(zero(used_.back(), kBytes));
    clean_.push_back(used_.back());
    used_.pop_back();
  }
  if (clean_.empty())
    return Status(Code::kUnavailable, "graphs hold " + std::to_string(count_) +
                                          " captured operations on this GPU, the most there are "
                                          "words for; destroy graphs that are not needed");
  std::byte* const word = clean_.back();
  clean_.pop_back();
  return word;
}

void GraphWords::giveBack(std::byte* word) {
  const std::lock_guard lock(mutex_);
  used_.push_back(word);
}

}  // namespace peerlane::stream
