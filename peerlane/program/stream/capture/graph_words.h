// SPDX-License-Identifier: Apache-2.0
//
// GraphWords: cursors and arrival words of captured work: 64 bytes each of the device's memory, all
// zero when they are handed out. Zeroing a word needs the device, which a waiting stream may hold
// up; so the words that come back are kept apart, and are zeroed only when no clean one is left.
// Thread-safe.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "peerlane/core/mutex.h"
#include "peerlane/core/status.h"

namespace peerlane::stream {

class GraphWords {
 public:
  static constexpr size_t kBytes = 64;

  GraphWords() = default;
  // `count` words from `memory` on, which is zero.
  void adopt(std::byte* memory, size_t count);
  // `zero` clears a range of device memory and waits until that is done. Errors: its own;
  // kUnavailable when all are in use, naming how many there are.
  Result<std::byte*> take(const std::function<Status(std::byte*, size_t)>& zero);
  // Requires: no graph uses the word any more.
  void giveBack(std::byte* word);

 private:
  Mutex mutex_;
  size_t count_ PEERLANE_GUARDED_BY(mutex_) = 0;
  std::vector<std::byte*> clean_ PEERLANE_GUARDED_BY(mutex_);
  std::vector<std::byte*> used_ PEERLANE_GUARDED_BY(mutex_);
};

}  // namespace peerlane::stream
