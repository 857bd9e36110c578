// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/stream/pools/lent_words.h"

namespace peerlane::stream {

std::atomic<uint64_t>* LentWords::tryLend() {
  const MutexLock lock(mutex_);
  // Only when there is no free word: a look at each costs a load of a line that a GPU may have
  // written.
  if (free_.empty())
    std::erase_if(used_, [this](const auto& used) PEERLANE_REQUIRES(mutex_) {
      if (!used.second.ended()) return false;
      free_.push_back(used.first);
      return true;
    });
  if (free_.empty()) return nullptr;
  std::atomic<uint64_t>* const word = free_.back();
  free_.pop_back();
  word->store(0, std::memory_order_release);
  return word;
}

Status LentWords::more() {
  constexpr size_t kWords = 64, kWordBytes = 64;
  PEERLANE_ASSIGN(const PinnedBlock block, pool_.take(kWords * kWordBytes));
  const MutexLock lock(mutex_);
  for (size_t i = 0; i < kWords; ++i)
    free_.push_back(reinterpret_cast<std::atomic<uint64_t>*>(block.data + i * kWordBytes));
  return Status::ok();
}

}  // namespace peerlane::stream
