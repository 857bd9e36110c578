// SPDX-License-Identifier: Apache-2.0
//
// A lock for a few stores, as drivers of NICs have one around each queue: no system call, and about
// ten nanoseconds where nobody else wants it.
#pragma once

#include <atomic>
#include <thread>

#include "peerlane/core/mutex.h"

namespace peerlane::softhca {

class PEERLANE_CAPABILITY("mutex") SpinLock {
 public:
  void lock() PEERLANE_ACQUIRE() {
    while (isTaken_.exchange(true, std::memory_order_acquire)) std::this_thread::yield();
  }
  void unlock() PEERLANE_RELEASE() { isTaken_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> isTaken_{false};
};

class PEERLANE_SCOPED_CAPABILITY SpinHeld {
 public:
  explicit SpinHeld(SpinLock& lock) PEERLANE_ACQUIRE(lock) : lock_(lock) { lock_.lock(); }
  ~SpinHeld() PEERLANE_RELEASE() { lock_.unlock(); }
  SpinHeld(const SpinHeld&) = delete;

 private:
  SpinLock& lock_;
};

// A number that only one thread at a time changes and any may read.
class Count {
 public:
  void add(uint64_t more) { value_.store(read() + more, std::memory_order_relaxed); }
  uint64_t read() const { return value_.load(std::memory_order_relaxed); }
  void clear() { value_.store(0, std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

}  // namespace peerlane::softhca
