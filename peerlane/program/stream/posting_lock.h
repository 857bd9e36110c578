// SPDX-License-Identifier: Apache-2.0
//
// PostingLock: a lock that is held while work is put on streams, and so for as long as the driver
// stops who puts it there. Who must not wait for that leaves what is to be done under the lock to
// whoever holds it. Thread-safe.
#pragma once

#include <functional>
#include <mutex>
#include <utility>
#include <vector>

namespace peerlane::stream {

class PostingLock {
 public:
  void lock();
  // Does what was left to it before.
  void unlock();
  // Does `work` under the lock, and never waits for its holder: at once, or the holder does it.
  // `work` is short, and takes no lock of this kind.
  void soon(std::function<void()> work);

 private:
  std::mutex mutex_;
  std::mutex leftMutex_;
  bool isHeld_ = false;  // mutex_ is; under leftMutex_, as the next
  std::vector<std::function<void()>> left_;
};

}  // namespace peerlane::stream
