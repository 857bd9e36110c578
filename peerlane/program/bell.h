// SPDX-License-Identifier: Apache-2.0
//
// Bell: the consumer's half of the wake rule (waker.h). One per context: a page with the count of
// threads that poll, which every peer may map for reading, and an eventfd that whoever is in this
// process writes when that count is 0 (peers have a socket each). Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "peerlane/core/status.h"
#include "peerlane/os/fd.h"
#include "peerlane/os/shm_segment.h"
#include "peerlane/program/waker.h"

namespace peerlane {

class Bell {
 public:
  static Result<std::unique_ptr<Bell>> create();

  // Brackets polling. After leave() returned true this thread was the last: it must look once more
  // at everything it serves before it sleeps, for a store that came before the count fell rang
  // nobody.
  void enter() { pollers().fetch_add(1, std::memory_order_seq_cst); }
  void leave() {
    pollers().fetch_sub(1, std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);  // partner: the producer's, see waker.h
  }

  // Readable after a ring; to be watched and drained by the thread that sleeps.
  int eventFd() const { return event_.get(); }
  const SharedSegment& page() const { return *page_; }
  // For producers in this process.
  Waker localWaker() const { return {&pollers(), event_.get()}; }

  // In a mapping of a bell's page. Byte map: the count is the first word; nothing else is used.
  static const std::atomic<uint32_t>* pollersIn(const std::byte* page) {
    return reinterpret_cast<const std::atomic<uint32_t>*>(page);
  }
  static constexpr size_t kPageBytes = 4096;

 private:
  Bell(std::unique_ptr<SharedSegment> page, Fd event)
      : page_(std::move(page)), event_(std::move(event)) {}
  std::atomic<uint32_t>& pollers() const {
    return *reinterpret_cast<std::atomic<uint32_t>*>(page_->data());
  }

  std::unique_ptr<SharedSegment> page_;
  Fd event_;
};
static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == 4,
              "the count is shared between processes");

}  // namespace peerlane
