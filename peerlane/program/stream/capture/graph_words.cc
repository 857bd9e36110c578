// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/stream/capture/graph_words.h"

#include <string>
#include <utility>

namespace peerlane::stream {

void GraphWords::adopt(std::byte* memory, size_t count) {
  const MutexLock lock(mutex_);
  count_ = count;
  // take() takes from the back, so the first words go first.
  for (size_t i = count; i-- > 0;) clean_.push_back(memory + i * kBytes);
}

Result<std::byte*> GraphWords::take(const std::function<Status(std::byte*, size_t)>& zero) {
  std::byte* word = nullptr;
  {
    const MutexLock lock(mutex_);
    std::vector<std::byte*>& from = clean_.empty() ? used_ : clean_;
    if (from.empty())
      return Status(Code::kUnavailable, "graphs hold " + std::to_string(count_) +
                                            " captured operations on this GPU, the most there are "
                                            "words for; destroy graphs that are not needed");
    word = from.back();
    from.pop_back();
    if (&from == &clean_) return word;
  }
  // Not under the lock: it waits for the GPU.
  if (Status zeroed = zero(word, kBytes); !zeroed.isOk()) {
    giveBack(word);
    return zeroed;
  }
  return word;
}

void GraphWords::giveBack(std::byte* word) {
  const MutexLock lock(mutex_);
  used_.push_back(word);
}

}  // namespace peerlane::stream
