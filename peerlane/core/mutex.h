// SPDX-License-Identifier: Apache-2.0
//
// Locks that clang's thread-safety analysis understands: std::mutex, std::shared_mutex and
// std::condition_variable under names of ours that carry its attributes, at no cost. A member says
// which lock guards it (PEERLANE_GUARDED_BY), a function which lock its caller holds
// (PEERLANE_REQUIRES); an access without the lock is an error of scripts/static_checks.py. Other
// compilers see no attribute.
//
// Limits of the analysis: a body of a lambda is a function of its own, so one that touches
// guarded members says what it requires; a lock that is passed on in an object (std::unique_lock)
// is not seen, so locks are passed on by PEERLANE_ACQUIRE and PEERLANE_RELEASE of functions;
// constructors and destructors are not checked.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <shared_mutex>

#if defined(__clang__)
#define PEERLANE_THREAD_SAFETY(attribute) __attribute__((attribute))
#else
#define PEERLANE_THREAD_SAFETY(attribute)
#endif

// Of a class: its objects are locks; its objects hold a lock from construction to destruction.
#define PEERLANE_CAPABILITY(name) PEERLANE_THREAD_SAFETY(capability(name))
#define PEERLANE_SCOPED_CAPABILITY PEERLANE_THREAD_SAFETY(scoped_lockable)
// Of a member: it, or the object that it points at, is touched with the lock held only.
#define PEERLANE_GUARDED_BY(lock) PEERLANE_THREAD_SAFETY(guarded_by(lock))
#define PEERLANE_POINTEE_GUARDED_BY(lock) PEERLANE_THREAD_SAFETY(pt_guarded_by(lock))
// Of a function: its caller holds these locks, at least for reading; its caller holds none of them.
#define PEERLANE_REQUIRES(...) PEERLANE_THREAD_SAFETY(requires_capability(__VA_ARGS__))
#define PEERLANE_REQUIRES_SHARED(...) \
  PEERLANE_THREAD_SAFETY(requires_shared_capability(__VA_ARGS__))
#define PEERLANE_EXCLUDES(...) PEERLANE_THREAD_SAFETY(locks_excluded(__VA_ARGS__))
// Of a function: it takes these locks, or lets go of them; none named: this object.
#define PEERLANE_ACQUIRE(...) PEERLANE_THREAD_SAFETY(acquire_capability(__VA_ARGS__))
#define PEERLANE_ACQUIRE_SHARED(...) PEERLANE_THREAD_SAFETY(acquire_shared_capability(__VA_ARGS__))
#define PEERLANE_RELEASE(...) PEERLANE_THREAD_SAFETY(release_capability(__VA_ARGS__))
#define PEERLANE_RELEASE_SHARED(...) PEERLANE_THREAD_SAFETY(release_shared_capability(__VA_ARGS__))
// The first argument is what the function returns when it has taken the lock.
#define PEERLANE_TRY_ACQUIRE(...) PEERLANE_THREAD_SAFETY(try_acquire_capability(__VA_ARGS__))
// Of a function that returns a lock: which one it is.
#define PEERLANE_RETURN_CAPABILITY(lock) PEERLANE_THREAD_SAFETY(lock_returned(lock))
// Of a function: its caller holds this lock where the analysis cannot see it, because a loop took
// it; from the call on it counts as held.
#define PEERLANE_ASSERT_HELD(lock) PEERLANE_THREAD_SAFETY(assert_capability(lock))
// Of a function that the analysis cannot follow; a comment there says why.
#define PEERLANE_NO_THREAD_SAFETY_ANALYSIS PEERLANE_THREAD_SAFETY(no_thread_safety_analysis)

namespace peerlane {

class PEERLANE_CAPABILITY("mutex") Mutex {
 public:
  constexpr Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() PEERLANE_ACQUIRE() { mutex_.lock(); }
  bool tryLock() PEERLANE_TRY_ACQUIRE(true) { return mutex_.try_lock(); }
  void unlock() PEERLANE_RELEASE() { mutex_.unlock(); }

 private:
  friend class Condition;
  std::mutex mutex_;
};

// Holds the mutex as long as it lives.
class PEERLANE_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) PEERLANE_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() PEERLANE_RELEASE() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// The same, and lets go of the mutex in between.
class PEERLANE_SCOPED_CAPABILITY ReleasableLock {
 public:
  explicit ReleasableLock(Mutex& mutex) PEERLANE_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~ReleasableLock() PEERLANE_RELEASE() {
    if (isHeld_) mutex_.unlock();
  }
  ReleasableLock(const ReleasableLock&) = delete;
  ReleasableLock& operator=(const ReleasableLock&) = delete;

  void unlock() PEERLANE_RELEASE() {
    isHeld_ = false;
    mutex_.unlock();
  }
  void lock() PEERLANE_ACQUIRE() {
    mutex_.lock();
    isHeld_ = true;
  }

 private:
  Mutex& mutex_;
  bool isHeld_ = true;
};

// Threads wait here until another changes what they wait for. Each wait may end early: look again,
// in a loop.
class Condition {
 public:
  void wait(Mutex& mutex) PEERLANE_REQUIRES(mutex) {
    std::unique_lock held(mutex.mutex_, std::adopt_lock);
    changed_.wait(held);
    (void)held.release();  // the caller's, as before
  }
  // False: it is `deadline`.
  template <typename Clock, typename Duration>
  bool waitUntil(Mutex& mutex, const std::chrono::time_point<Clock, Duration>& deadline)
      PEERLANE_REQUIRES(mutex) {
    std::unique_lock held(mutex.mutex_, std::adopt_lock);
    const bool isInTime = changed_.wait_until(held, deadline) == std::cv_status::no_timeout;
    (void)held.release();
    return isInTime;
  }
  void notifyOne() { changed_.notify_one(); }
  void notifyAll() { changed_.notify_all(); }

 private:
  std::condition_variable changed_;
};

// One thread, or any number that only read.
class PEERLANE_CAPABILITY("shared mutex") SharedMutex {
 public:
  SharedMutex() = default;
  SharedMutex(const SharedMutex&) = delete;
  SharedMutex& operator=(const SharedMutex&) = delete;

  void lock() PEERLANE_ACQUIRE() { mutex_.lock(); }
  void unlock() PEERLANE_RELEASE() { mutex_.unlock(); }
  void lockShared() PEERLANE_ACQUIRE_SHARED() { mutex_.lock_shared(); }
  void unlockShared() PEERLANE_RELEASE_SHARED() { mutex_.unlock_shared(); }

 private:
  std::shared_mutex mutex_;
};

class PEERLANE_SCOPED_CAPABILITY WriterLock {
 public:
  explicit WriterLock(SharedMutex& mutex) PEERLANE_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~WriterLock() PEERLANE_RELEASE() { mutex_.unlock(); }
  WriterLock(const WriterLock&) = delete;
  WriterLock& operator=(const WriterLock&) = delete;

 private:
  SharedMutex& mutex_;
};

class PEERLANE_SCOPED_CAPABILITY ReaderLock {
 public:
  explicit ReaderLock(SharedMutex& mutex) PEERLANE_ACQUIRE_SHARED(mutex) : mutex_(mutex) {
    mutex_.lockShared();
  }
  ~ReaderLock() PEERLANE_RELEASE() { mutex_.unlockShared(); }
  ReaderLock(const ReaderLock&) = delete;
  ReaderLock& operator=(const ReaderLock&) = delete;

 private:
  SharedMutex& mutex_;
};

}  // namespace peerlane
