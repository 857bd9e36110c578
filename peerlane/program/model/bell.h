// SPDX-License-Identifier: Apache-2.0
//
// Bell: the consumer's half of the wake rule (waker.h). One per context: a page with the word that
// producers read, which every peer may map for reading, and an eventfd that the producers of this
// process write when no thread of the context polls (each other process has a pair of sockets for
// that). Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "peerlane/core/status.h"
#include "peerlane/os/fd.h"
#include "peerlane/os/shm_segment.h"
#include "peerlane/program/model/waker.h"

namespace peerlane {

class Bell {
 public:
  static Result<std::unique_ptr<Bell>> create();

  // Brackets polling. Between leave() and its sleep the thread must look once more at everything
  // that the context serves, because a producer that stored before the word changed may have rung
  // nobody. A thread that drains the descriptor must enter and leave before the next sleep.
  void enter() { word().fetch_add(bell_word::kPoller, std::memory_order_seq_cst); }
  void leave() {
    word().fetch_add(bell_word::kLeave, std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);  // partner: the producer's, see waker.h
  }

  // Brackets a sleep that the store of a signal must end. Between listen() and its sleep the thread
  // must look once more at the signals: one that was stored before may have rung nobody.
  void listen() {
    listeners().fetch_add(bell_word::kListener, std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);  // partner: the producer's, see waker.h
  }
  void stopListening() { listeners().fetch_sub(bell_word::kListener, std::memory_order_relaxed); }

  // Readable after a ring. The thread that sleeps must watch and drain it.
  int eventFd() const { return event_.get(); }
  const SharedSegment& page() const {
    isGiven_.store(true, std::memory_order_seq_cst);
    return *page_;
  }
  // For producers in this process. They must not use it longer than the bell exists.
  Waker localWaker() const {
    isGiven_.store(true, std::memory_order_seq_cst);
    return {&word(), &rungAt_, event_.get()};
  }
  // Somebody may look at the count. Before that it need not be kept.
  bool isGiven() const { return isGiven_.load(std::memory_order_relaxed); }

  // In a mapping of a bell's page. Byte map: the word at 0, that of the listeners at 64; nothing
  // else is used.
  static const std::atomic<uint64_t>* wordIn(const std::byte* page) {
    return reinterpret_cast<const std::atomic<uint64_t>*>(page);
  }
  static const std::atomic<uint64_t>* listenersIn(const std::byte* page) {
    return reinterpret_cast<const std::atomic<uint64_t>*>(page + kListenersOffset);
  }
  static constexpr size_t kPageBytes = 4096;

 private:
  static constexpr size_t kListenersOffset = 64;  // a cache line that seldom changes
  Bell(std::unique_ptr<SharedSegment> page, Fd event)
      : page_(std::move(page)), event_(std::move(event)) {
    listeners().store(bell_word::kNobodyListens, std::memory_order_relaxed);
  }
  std::atomic<uint64_t>& word() const {
    return *reinterpret_cast<std::atomic<uint64_t>*>(page_->data());
  }
  std::atomic<uint64_t>& listeners() const {
    return *reinterpret_cast<std::atomic<uint64_t>*>(page_->data() + kListenersOffset);
  }

  std::unique_ptr<SharedSegment> page_;
  Fd event_;
  mutable std::atomic<uint64_t> rungAt_{bell_word::kNever};  // of all local wakers
  mutable std::atomic<bool> isGiven_{false};
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && sizeof(std::atomic<uint64_t>) == 8,
              "the word is shared between processes");

}  // namespace peerlane
