// SPDX-License-Identifier: Apache-2.0
//
// EventLoop: waits for descriptors and timers and runs short functions. It owns no thread: the
// thread that calls poll(), spin() or waitOnce() is the loop's thread. Only that thread may touch
// the loop, its watches and its timers, except for post() and wake(). Functions run inside those
// three calls only, never inside the call that registered them; they must not call poll(), spin()
// or waitOnce() (checked) and must not throw.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>

#include "peerlane/core/status.h"

namespace peerlane {

namespace internal {
struct LoopCore;
struct WatchRecord;
struct TimerRecord;
}  // namespace internal

// A descriptor under observation. Destruction ends it at once: the function is not called again,
// also when it destroys its own watch or when it was already due. May outlive the loop (then it
// does nothing).
class Watch {
 public:
  Watch();
  ~Watch();
  Watch(Watch&&) noexcept;
  Watch& operator=(Watch&&) noexcept;

  // Changes the directions that the watch waits for. Both false pauses the watch.
  void setInterest(bool readable, bool writable);
  explicit operator bool() const;

 private:
  friend class EventLoop;
  explicit Watch(std::shared_ptr<internal::WatchRecord> record);
  void end();
  std::shared_ptr<internal::WatchRecord> record_;
};

// A function to be called once, later. Destruction and cancel() prevent it, also when it was
// already due.
class Timer {
 public:
  Timer();
  ~Timer();
  Timer(Timer&&) noexcept;
  Timer& operator=(Timer&&) noexcept;

  void cancel();
  // Not yet run and not cancelled.
  bool pending() const;

 private:
  friend class EventLoop;
  explicit Timer(std::shared_ptr<internal::TimerRecord> record);
  std::shared_ptr<internal::TimerRecord> record_;
};

// Marks this thread as one that runs a loop, for as long as it exists: code that is called there
// must not wait for a loop. Loops do so while they run functions.
class LoopThreadScope {
 public:
  LoopThreadScope();
  ~LoopThreadScope();
  LoopThreadScope(const LoopThreadScope&) = delete;
  LoopThreadScope& operator=(const LoopThreadScope&) = delete;
  // Whether this thread is marked, for any loop of the process.
  static bool isHere();
};

class EventLoop {
 public:
  using Duration = std::chrono::nanoseconds;

  // Errors: kUnavailable when the process has no descriptors left, kSystem for what else the system
  // refuses.
  static Result<std::unique_ptr<EventLoop>> create();
  // Functions that were posted or due are dropped unrun. Requires: not inside one of them.
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Calls `fn` while `fd` is ready in a wanted direction (or failed or hung up), again and again
  // until `fn` makes it unready: at most once per direction and turn. Puts `fd` into non-blocking
  // mode. Requires: `fd` stays open as long as the watch, and has no other watch in this loop.
  // Errors: kInvalidArgument (not a pollable descriptor, or watched already).
  Result<Watch> watch(int fd, bool readable, bool writable, std::function<void()> fn);

  // Calls `fn` once, `delay` from now or a little later.
  Timer after(Duration delay, std::function<void()> fn);

  // Calls `fn` in the loop's thread. Order: posts of one thread run in their order. Thread: any;
  // `fn` sees all that the posting thread did before the call. Lifetime: the caller keeps the loop
  // alive until post() returns, as for wake(): `fn` may have run before that.
  void post(std::function<void()> fn);
  // Makes the waitOnce in progress, or else the next one, return without waiting. Thread: any.
  void wake();

  // Runs everything that is ready, without blocking; functions that become ready meanwhile may wait
  // for the next turn. Returns how many functions ran. Costs a system call.
  size_t poll();
  // For spinning: runs posted functions at once, but looks at descriptors and timers only every 20
  // microseconds, so most calls cost a clock reading; every microsecond for a moment after a
  // function ran, because an answer may come.
  size_t spin();
  // Like poll(), but when nothing is ready waits for something, for wake(), or for `timeout` to
  // pass. Returns how many functions ran; 0 after wake() or the timeout.
  size_t waitOnce(Duration timeout);

 private:
  explicit EventLoop(std::unique_ptr<internal::LoopCore> core);
  std::unique_ptr<internal::LoopCore> core_;
};

}  // namespace peerlane
