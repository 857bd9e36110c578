// SPDX-License-Identifier: Apache-2.0
//
// ReadinessSet: the descriptors over which links receive data, for the thread that attends to them.
// Threads that wait attend: they look at the descriptors themselves, or block on all of them, and
// meanwhile nobody else is woken by data. While none attends, the descriptor of gate() is readable
// when data has come: an event loop watches it. So a message wakes one thread at most, the one that
// waits for it.
//
// Linux: the members are in an epoll of their own, which is the only member of a second one, the
// gate; to attend is to take it out of the gate. Thread-safe, but for block(): one thread at a
// time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "peerlane/core/mutex.h"
#include "peerlane/core/status.h"
#include "peerlane/os/fd.h"

namespace peerlane {

class ReadinessSet {
 public:
  using Clock = std::chrono::steady_clock;

  // One descriptor, as its link sees it. The flags are hints: a wrong one costs a system call.
  struct Member {
    // look() sets them; the link clears one when the descriptor turned out not to be so.
    std::atomic<bool> mayRead{true};
    std::atomic<bool> mayWrite{true};
    uint64_t number = 0;
    int fd = -1;
    bool isOften = true;
  };

  // Errors: kUnavailable (no descriptors left).
  static Result<std::unique_ptr<ReadinessSet>> create();

  // Requires: `fd` stays open until remove(). `isOften`: most of what comes may come by it. Errors:
  // kSystem, kUnavailable.
  Result<std::shared_ptr<Member>> add(int fd, bool isOften = true);
  void remove(const Member& member);
  // Whether readiness for writing counts as well, for this member. Costs a system call.
  void wantRoom(const Member& member, bool wanted);
  bool isEmpty() const { return count_.load(std::memory_order_acquire) == 0; }

  // Sets the flags of members that are ready. Where few are added as ready often, it sets theirs in
  // any case, because to try a few costs less than to ask, and asks for the others only each
  // kLooksPerAsk-th time, as long as it finds none: the set stays ready until it has asked. To be
  // called at the beginning of a turn.
  void look();
  static constexpr uint32_t kLooksPerAsk = 4;

  // Attends as long as it lives.
  class Attendance {
   public:
    explicit Attendance(ReadinessSet& set) : set_(set) { set_.attend(); }
    ~Attendance() { set_.leave(isResting_); }
    // This thread takes no turn until goOn(): what is owed already, or from now on, makes the set
    // ready.
    void rest() {
      if (!std::exchange(isResting_, true)) set_.rest();
    }
    void goOn() {
      if (std::exchange(isResting_, false)) set_.goOn();
    }
    Attendance(const Attendance&) = delete;
    Attendance& operator=(const Attendance&) = delete;

   private:
    ReadinessSet& set_;
    bool isResting_ = false;
  };
  // Waits until a member is ready, interrupt() was called, or it is `deadline`. True: a member is
  // ready. For a thread that attends.
  bool block(Clock::time_point deadline);
  // Ends the block() in progress, or the next one. Any thread.
  void interrupt();

  // Readable when a member is ready and no thread attends.
  int gate() const { return gate_.get(); }

  static constexpr std::chrono::microseconds kOwed{30};
  // Something small is owed to a peer that a later message should carry along. A thread that
  // attends and does not rest pays in its next turn. Once no such thread is left, the set becomes
  // ready after `kOwed`, and wakes a thread that blocks on it, or the loop by the gate.
  void owe();
  void paid() { owed_.fetch_sub(1, std::memory_order_acq_rel); }
  bool isOwed() const { return owed_.load(std::memory_order_acquire) != 0; }
  bool isAttended() const { return attending_.load(std::memory_order_acquire) != 0; }

 private:
  static constexpr size_t kFew = 4;
  ReadinessSet() = default;
  void attend();
  void leave(bool isResting);
  void rest();
  void goOn() { active_.fetch_add(1, std::memory_order_seq_cst); }
  void payLater() PEERLANE_REQUIRES(mutex_);
  void setGate(bool open) PEERLANE_REQUIRES(mutex_);
  void setTimer(std::chrono::nanoseconds time) PEERLANE_REQUIRES(mutex_);

  Fd members_;                          // epoll of the members and of timer_
  Fd gate_;                             // epoll of members_
  Fd timer_;                            // of what is owed; a member
  Fd interrupt_;                        // eventfd
  std::atomic<uint32_t> count_{0};      // members
  std::atomic<uint32_t> attending_{0};  // threads; changed under the mutex
  std::atomic<uint32_t> active_{0};     // of those: they do not rest, and will take a turn
  std::atomic<uint32_t> owed_{0};
  Mutex mutex_;
  std::unordered_map<uint64_t, std::shared_ptr<Member>> byNumber_ PEERLANE_GUARDED_BY(mutex_);
  uint64_t lastNumber_ PEERLANE_GUARDED_BY(mutex_) = 0;
  std::vector<std::shared_ptr<Member>> often_ PEERLANE_GUARDED_BY(mutex_);
  uint32_t looks_ PEERLANE_GUARDED_BY(mutex_) = 0;  // since it asked
  bool timerRuns_ PEERLANE_GUARDED_BY(mutex_) = false;
};

}  // namespace peerlane
