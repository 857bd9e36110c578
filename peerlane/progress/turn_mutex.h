// SPDX-License-Identifier: Apache-2.0
//
// TurnMutex: a lock that turns only try, because a thread may hold it for long, or lose its core
// while it holds it. A turn that finds it taken gives up its look, and the thread that holds the
// lock makes up for that: once it has let go, it wakes the progress engine. So a look that was
// given up is never the last one before the engine sleeps. Thread-safe; one thread at a time may
// call tryLock(). The analysis of locks sees one lock, not the mutex inside.
#pragma once

#include <atomic>

#include "peerlane/core/mutex.h"
#include "peerlane/progress/progress.h"

namespace peerlane {

class PEERLANE_CAPABILITY("mutex") TurnMutex {
 public:
  explicit TurnMutex(Progress& progress) : progress_(progress) {}
  TurnMutex(const TurnMutex&) = delete;
  TurnMutex& operator=(const TurnMutex&) = delete;

  void lock() PEERLANE_ACQUIRE() PEERLANE_NO_THREAD_SAFETY_ANALYSIS { mutex_.lock(); }
  void unlock() PEERLANE_RELEASE() PEERLANE_NO_THREAD_SAFETY_ANALYSIS {
    mutex_.unlock();
    // An exchange after the unlock; partner: tryLock().
    if (isWanted_.exchange(false, std::memory_order_seq_cst)) progress_.wake();
  }
  // By the thread that holds it: there is work for a turn once it has let go.
  void askForTurn() PEERLANE_REQUIRES(this) {
    isWanted_.store(true, std::memory_order_relaxed);  // read by its own unlock()
  }
  // By a turn. Partner: unlock(), which lets go first and looks then; here it is the other way
  // round, so either the holder sees that the lock is wanted, or the second try succeeds.
  bool tryLock() PEERLANE_TRY_ACQUIRE(true) PEERLANE_NO_THREAD_SAFETY_ANALYSIS {
    if (mutex_.tryLock()) return true;
    isWanted_.store(true, std::memory_order_seq_cst);
    return mutex_.tryLock();
  }

 private:
  Progress& progress_;  // outlives this object
  Mutex mutex_;
  std::atomic<bool> isWanted_{false};  // by a turn that found it taken, or by askForTurn()
};

// Holds the lock as long as it lives.
class PEERLANE_SCOPED_CAPABILITY TurnMutexLock {
 public:
  explicit TurnMutexLock(TurnMutex& mutex) PEERLANE_ACQUIRE(mutex) : mutex_(mutex) {
    mutex_.lock();
  }
  ~TurnMutexLock() PEERLANE_RELEASE() { mutex_.unlock(); }
  TurnMutexLock(const TurnMutexLock&) = delete;
  TurnMutexLock& operator=(const TurnMutexLock&) = delete;

 private:
  TurnMutex& mutex_;
};

}  // namespace peerlane
