// SPDX-License-Identifier: Apache-2.0
//
// UseGate: lets transfers use a piece of memory until its owner closes the gate, and tells the
// owner when the last one has left. Two ways in: enter() costs an atomic increment; prepared posts
// instead raise a flag of their own that they enrolled before, and the closer pays for that with a
// process-wide barrier (asymmetric_fence.h). Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "peerlane/core/asymmetric_fence.h"
#include "peerlane/core/mutex.h"
#include "peerlane/core/split_count.h"
#include "peerlane/core/status.h"

namespace peerlane {

// Raised while a prepared post runs. The poster stores it, calls lightFence(), then reads
// UseGate::open().
struct BusyFlag {
  std::atomic<uint32_t> raised{0};  // poster relaxed, lowered with release -> closer acquire
};

class UseGate {
 public:
  // True: the memory may be used until leave(). False: closed.
  bool enter() {
    pins_.begin();  // partner: closed_ in close()
    if (!closed_.load(std::memory_order_seq_cst)) return true;
    pins_.end();
    return false;
  }
  void leave() { pins_.end(); }

  // For posters only after they raised a BusyFlag and called lightFence().
  bool open() const { return !closed_.load(std::memory_order_relaxed); }

  void enroll(const BusyFlag& flag) {
    const MutexLock lock(mutex_);
    flags_.push_back(&flag);
    hasFlags_.store(true, std::memory_order_seq_cst);
    // Partner: close(), which did not see the flag, and whose store every later open() sees then.
    internal::fullFence();
  }
  void withdraw(const BusyFlag& flag) {
    const MutexLock lock(mutex_);
    std::erase(flags_, &flag);
  }

  // From now on enter() and open() return false. Users that entered before may stay: ask drained().
  // `why` is the code for callers that come then: kClosed, or kRevoked, which stays.
  void close(Code why = Code::kClosed) {
    if (why == Code::kRevoked) {
      isRevoked_.store(true, std::memory_order_release);
      revocations_.fetch_add(1, std::memory_order_release);  // partner: revocations()
    }
    closed_.store(true, std::memory_order_seq_cst);
    // After it, every poster that saw the gate open has its flag raised. Most regions are in no
    // plan, and a program closes thousands of gates.
    if (hasFlags_.load(std::memory_order_seq_cst)) heavyFence();
  }
  // The memory was taken back by its provider, or freed, before it was unregistered. Known before
  // the gate is closed.
  bool isRevoked() const { return isRevoked_.load(std::memory_order_acquire); }
  // How many gates of this process were closed so, for users of many: while the number is what it
  // was, none of theirs is revoked since.
  static uint64_t revocations() { return revocations_.load(std::memory_order_acquire); }
  // The code for a caller that found the gate closed.
  Code why() const { return isRevoked() ? Code::kRevoked : Code::kClosed; }

  // Opens again (an unregistration that was refused).
  void reopen() { closed_.store(false, std::memory_order_seq_cst); }

  // After close(): true when no user of the memory is left.
  bool drained() const {
    if (!pins_.none()) return false;
    const MutexLock lock(mutex_);
    for (const BusyFlag* flag : flags_)
      if (flag->raised.load(std::memory_order_acquire) != 0) return false;
    return true;
  }
  uint64_t pins() const { return pins_.value(); }

 private:
  inline static std::atomic<uint64_t> revocations_{0};
  std::atomic<bool> closed_{false};
  std::atomic<bool> isRevoked_{false};
  std::atomic<bool> hasFlags_{false};  // or had
  SplitCount pins_;
  mutable Mutex mutex_;
  std::vector<const BusyFlag*> flags_ PEERLANE_GUARDED_BY(mutex_);
};

}  // namespace peerlane
