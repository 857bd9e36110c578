// SPDX-License-Identifier: Apache-2.0
//
// FreeWatch: tells of private memory of this process that its program unmaps, moves or gives back
// (munmap, mmap over it, mremap, madvise, a heap that shrinks), by userfaultfd. No page fault is
// ever taken over: nothing is protected, only events are read. The kernel lets the call that frees
// go on only when its event was read, so one thread of the process reads them. It lives as long as
// a range is watched.
//
// The price is the program's: a call that frees watched memory waits for that thread (tens of
// microseconds), and watched mappings do not merge with others.
//
// Thread-safe, but for Listener::freed().
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "peerlane/core/status.h"

namespace peerlane {

namespace internal {
// Properties of the process, hence global.
inline std::atomic<bool> frees_are_read{false};
inline std::atomic<uint64_t> frees_told{0};
void awaitFrees();
}  // namespace internal

struct FreeReader;

class FreeWatch {
 public:
  class Listener {
   public:
    // A part of the range was freed, for the first time. Called on the watch's thread, while the
    // thread that freed it, or any other that frees, may wait with any lock held, that of malloc
    // included: no memory is allocated or freed here, no lock is taken, and nothing is waited for.
    virtual void freed() noexcept = 0;

   protected:
    ~Listener() = default;
  };

  // Watched from its making to its end. The memory need not outlive it.
  class Range {
   public:
    ~Range();
    Range(const Range&) = delete;
    Range& operator=(const Range&) = delete;

   private:
    friend class FreeWatch;
    friend struct FreeReader;
    Range(std::byte* base, size_t bytes, Listener& listener)
        : base_(base), bytes_(bytes), listener_(listener) {}
    bool overlaps(const std::byte* from, const std::byte* to) const {
      return base_ < to && from < base_ + bytes_;
    }
    std::byte* const base_;
    const size_t bytes_;
    Listener& listener_;
    FreeReader* reader_ = nullptr;  // null: it was not linked
    bool isFreed_ = false;          // the reader's lock guards this and the next two
    Range* next_ = nullptr;
    Range* before_ = nullptr;
  };

  // Whether this process may watch memory at all. Errors: kNotSupported with the reason.
  static Status probe();

  // `listener` outlives the range. All of the mappings that hold it are watched: a part of one
  // could not be moved any more together with the rest (mremap). Errors: kNotSupported with the
  // reason (as probe(); memory that is not private and anonymous, where files could take pages
  // without an event; a mapping that another userfaultfd watches), kInvalidArgument (not mapped, in
  // part), kUnavailable (no descriptor, no thread; pages in it were given back by madvise() while
  // they were watched, 10 s ago or less).
  static Result<std::unique_ptr<Range>> watch(std::byte* base, size_t bytes, Listener& listener);

  // After it, each listener whose memory was freed by a call that has returned was told. Costs a
  // load, unless events are being read.
  //
  // Why a load is enough: the reader raises the flag before it reads an event, and lowers it when
  // the listeners were told. The kernel lets the freeing call go on during the read. So a thread
  // that comes after that call sees the flag raised, and waits, or lowered again, and with it all
  // that the listeners stored.
  static void settle() {
    if (internal::frees_are_read.load(std::memory_order_acquire)) internal::awaitFrees();
  }
  // The same of calls that have not returned, but whose addresses another thread may have mapped
  // anew: the kernel sends the event of munmap() when the memory is gone. Costs a system call (half
  // a microsecond), and waits for such calls. Requires: a range is watched.
  static void settleAll();
  // settle(), and a number that changes when a listener of this process is told.
  static uint64_t told() {
    settle();
    return internal::frees_told.load(std::memory_order_acquire);
  }
};

}  // namespace peerlane
