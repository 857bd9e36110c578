// SPDX-License-Identifier: Apache-2.0
//
// Events with a descriptor that shows them: a queue that is readable while it holds any, as the
// kernel's are. Any thread; what takes an event may block, as read() does on the descriptor.
#pragma once

#include <infiniband/verbs.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <deque>

#include "peerlane/core/mutex.h"

namespace peerlane::softhca {

template <class Event>
class EventQueue {
 public:
  EventQueue() : fd_(eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE)) {}
  ~EventQueue() {
    if (fd_ >= 0) close(fd_);
  }
  EventQueue(const EventQueue&) = delete;

  int fd() const { return fd_; }

  void push(const Event& event) {
    const MutexLock lock(mutex_);
    events_.push_back(event);
    const uint64_t one = 1;
    [[maybe_unused]] const auto written = write(fd_, &one, sizeof one);
  }

  // 0, or -1 with errno (EAGAIN: the descriptor does not block, and there is none).
  // `take` is called with the lock held.
  template <class Take>
  int pop(Take&& take) {
    for (;;) {
      uint64_t one = 0;
      if (read(fd_, &one, sizeof one) != sizeof one) return -1;
      const MutexLock lock(mutex_);
      if (events_.empty()) continue;  // it was taken back meanwhile
      take(events_.front());
      events_.pop_front();
      return 0;
    }
  }

  // Takes back what nobody has seen.
  template <class Matches>
  void remove(Matches&& matches) {
    const MutexLock lock(mutex_);
    const size_t before = events_.size();
    std::erase_if(events_, matches);
    for (size_t gone = before - events_.size(); gone > 0; --gone) {
      pollfd ready{fd_, POLLIN, 0};
      uint64_t one = 0;
      if (poll(&ready, 1, 0) == 1) [[maybe_unused]]
        const auto size = read(fd_, &one, sizeof one);
    }
  }

 private:
  const int fd_;
  Mutex mutex_;
  std::deque<Event> events_ PEERLANE_GUARDED_BY(mutex_);
};

// How objects count events that were taken and those that were acknowledged: destroying one waits
// until the two are equal. With the fields that verbs.h gives them.
class EventDebt {
 public:
  void take() { ++taken_; }  // under the lock of the event queue
  template <class Object>
  static void acknowledge(Object& object, uint32_t& acknowledged, uint32_t count) {
    pthread_mutex_lock(&object.mutex);
    acknowledged += count;
    pthread_cond_broadcast(&object.cond);
    pthread_mutex_unlock(&object.mutex);
  }
  template <class Object>
  void waitFor(Object& object, const uint32_t& acknowledged) {
    pthread_mutex_lock(&object.mutex);
    while (acknowledged != taken_) pthread_cond_wait(&object.cond, &object.mutex);
    pthread_mutex_unlock(&object.mutex);
  }

 private:
  std::atomic<uint32_t> taken_{0};
};

}  // namespace peerlane::softhca
