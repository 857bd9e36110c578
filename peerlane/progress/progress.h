// SPDX-License-Identifier: Apache-2.0
//
// Progress: the progress engine, one per context. It advances everything that advances by polling,
// one pass ("turn") at a time. One thread of its own owns the event loop and takes turns, and any
// waiting thread may take a turn in its place, so that a spinning user thread depends on no other
// thread. Turns never block in a driver call. Without work the thread sleeps and uses no CPU; a
// thread that stores a word for this context must ring its bell (bell.h has the rule).
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "peerlane/core/device_code.h"
#include "peerlane/core/metrics.h"
#include "peerlane/core/mutex.h"
#include "peerlane/core/split_count.h"
#include "peerlane/core/status.h"
#include "peerlane/os/event_loop.h"
#include "peerlane/os/process.h"
#include "peerlane/os/readiness_set.h"
#include "peerlane/program/model/bell.h"
#include "peerlane/program/model/mailbox.h"
#include "peerlane/progress/awaited.h"

namespace peerlane {

// A piece of work that turns advance until it is finished. Threads: turn() is called by one thread
// at a time.
class Task {
 public:
  enum class Turn : uint8_t { kIdle, kMoved, kFinished };
  virtual ~Task() = default;
  virtual Turn turn() = 0;
  // One line for dumps: its current step and the event that it waits for. Called by a thread that
  // has the turn.
  virtual std::string describe() const { return {}; }
  // Its turn comes before those of tasks for which this is false: it brings what they wait for.
  virtual bool isFirst() const { return false; }

 private:
  friend class Progress;
  Task* nextPending_ = nullptr;      // in Progress::pending_
  std::shared_ptr<Task> keepAlive_;  // held from add() until a turn takes it over
};

class Progress {
 public:
  using Clock = std::chrono::steady_clock;
  using Duration = std::chrono::nanoseconds;

  // `spin`: how long to poll after work before sleeping.
  // `wakeups`: counts the rings that found the thread asleep; outlives the engine. `busyPoll`:
  // whether there are cores enough for the threads of both sides (waitAsleep()).
  static Result<std::unique_ptr<Progress>> create(Duration spin, Counter* wakeups = nullptr,
                                                  bool busyPoll = hasManyCores());
  ~Progress();
  // Ends the thread; tasks still there are dropped. Afterwards post() drops its function, and
  // call() fails. Idempotent; not on the progress thread.
  void stop();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  EventLoop& loop() { return *loop_; }
  Bell& bell() { return *bell_; }
  // The descriptors over which links receive data: waiting threads attend to them.
  ReadinessSet& readiness() { return *readiness_; }
  // A peer woke this side by a descriptor of its own. Progress thread.
  void countWakeup() {
    if (wakeups_ != nullptr) wakeups_->add();
  }
  bool onLoopThread() const { return std::this_thread::get_id() == thread_.get_id(); }

  // Advances `task` by turns from now on. Takes no lock. Requires: the task is not with a Progress
  // already, or its last turn is about to return kFinished.
  void add(std::shared_ptr<Task> task) {
    addQuietly(std::move(task));
    wakeLoopIfAsleep();
  }
  // The same for a task that waits for a device (expectDeviceStores() was called): the progress
  // thread polls soon anyway, and to wake it would cost more than many a post.
  void addQuietly(std::shared_ptr<Task> task);
  // The same for a task that waits for what is in `mailbox`, if anything is: once an agent has all
  // of it in its hands, the answer brings a turn about, and to wake the thread now would be in
  // vain.
  void addFor(std::shared_ptr<Task> task, Mailbox* mailbox) {
    if (mailbox == nullptr || !mailbox->isInAgentsHands()) return add(std::move(task));
    addQuietly(std::move(task));
    // The answer may have come before that: then no further turn would see the task. One that
    // brings the answer after this look finds it among the pending (turnUnlessTaken). Not idle():
    // that is the poster's, and a turn may have made another thread the poster meanwhile.
    if (!mailbox->pending()) wakeLoopIfAsleep();
  }
  // To be called after a store that a task, not a waiter, polls for: the thread soon takes a turn.
  // Requires: the store was sequentially consistent (an exchange, or a store before one). A weaker
  // store may become visible only after this call has read whether the thread sleeps, and the
  // thread would sleep through it.
  void wake() { wakeLoopIfAsleep(); }

  // Spins with turns until `ready()`, `longest` at most: for a wait for a device that ends soon and
  // rings no bell. True when ready.
  template <typename Ready>
  bool spinFor(const Ready& ready, Duration longest) {
    if (ready()) return true;
    if (!mayWait().isOk()) return false;
    const Clock::time_point end = deadlineIn(longest);
    for (uint32_t looks = 1;; ++looks) {
      if (ready()) return true;
      if (looks % kLooksPerPause == 0) cpuRelax();
      if (looks % kLooksPerTurn != 0) continue;
      turn();
      if (Clock::now() >= end) return ready();
    }
  }

  // Runs `fn` on the progress thread. Order: posts of one thread keep theirs. After stop() `fn` is
  // dropped.
  void post(std::function<void()> fn) {
    if (!stopped_.load(std::memory_order_acquire)) loop_->post(std::move(fn));
  }
  // The same, and waits until `fn` has returned. kInvalidArgument on the progress thread itself.
  // kTimeout: `fn` had not begun before the deadline (a callback blocks the progress thread), and
  // never will.
  Status call(std::function<void()> fn, Clock::time_point deadline = Clock::time_point::max());

  // `timeout` from now; the largest durations mean "very long", not the past.
  static Clock::time_point deadlineIn(Duration timeout) {
    return Clock::now() + std::min<Duration>(timeout, std::chrono::hours(24 * 3650));
  }

  // Returns when `ready()` is true: spins with turns of its own first, then sleeps. Other threads
  // also call `ready` during this call, under a lock: so it must be short, and must not take a lock
  // under which other code calls the engine. kTimeout at the deadline, or up to 100 ms after it
  // when other threads have the turn; the error has the words of `what` and the time waited.
  // describeWaits() lists the wait once it has lasted for kUnlisted.
  template <typename Ready>
  Status wait(const Ready& ready, Clock::time_point deadline, Awaited what = {}) {
    if (ready()) return Status::ok();
    if (Status status = beginWait(); !status.isOk()) return status;
    Pace pace;
    do {
      if (ready()) return Status::ok();
    } while (keepSpinning(pace, deadline, what));
    return sleepUntil(std::cref(ready), pace, deadline, what);
  }

  // The same for a timeout from now. Most waits are short: the clock is read only for the others.
  template <typename Ready>
  Status wait(const Ready& ready, Duration timeout, Awaited what = {}) {
    if (ready()) return Status::ok();
    if (Status status = beginWait(); !status.isOk()) return status;
    for (uint32_t looks = 1; looks < kLooksPerTurn; ++looks) {
      if (looks % kLooksPerPause == 0) cpuRelax();
      if (ready()) return Status::ok();
    }
    return wait(ready, deadlineIn(timeout), what);
  }

  // The same for events that the progress thread itself brings about (sockets, control messages):
  // this thread takes no turns, and gives its core away where the progress thread may need it.
  // Where there are enough cores, both threads first poll for a moment without a pause: the steps
  // of a set-up follow each other closely, and one wake-up per step would take longer than all the
  // steps.
  Status waitAsleep(const std::function<bool()>& ready, Clock::time_point deadline,
                    Awaited what = {}) {
    if (ready()) return Status::ok();
    PEERLANE_RETURN_IF_ERROR(mayWait());
    Pace pace;
    pace.takesTurns = false;
    pace.begin = Clock::now();
    return pollBusily(ready, deadline) ? Status::ok() : sleepUntil(ready, pace, deadline, what);
  }

  // The same for a thread that can itself advance the thing that it waits for: this thread alone
  // calls `advance()`, between calls of `ready()`; it returns true when something moved. It is not
  // called while this thread sleeps.
  template <typename Ready, typename Advance>
  Status wait(const Ready& ready, const Advance& advance, Clock::time_point deadline,
              Awaited what = {}) {
    if (ready()) return Status::ok();
    if (Status status = beginWait(); !status.isOk()) return status;
    Pace pace;
    do {
      if (advance()) pace.end = {};
      // Data for it may lie in a socket, which only a turn reads.
      if (!readiness_->isEmpty()) pace.looks |= kLooksPerAdvance - 1;
      if (ready()) return Status::ok();
    } while (keepSpinning(pace, deadline, what));
    return sleepUntil(std::cref(ready), pace, deadline, what);
  }

  // Lists a wait in describeWaits() for as long as this object lives: for a wait that is made of
  // several calls, or that is made outside the engine.
  class ListedWait {
   public:
    ListedWait(Progress& progress, Awaited what, Clock::time_point begin,
               Clock::time_point deadline);
    ~ListedWait();
    ListedWait(const ListedWait&) = delete;
    ListedWait& operator=(const ListedWait&) = delete;

   private:
    friend class Progress;
    std::string line(Clock::time_point now) const;
    Progress& progress_;
    const Awaited what_;
    const Clock::time_point begin_;
    const Clock::time_point deadline_;
    const int thread_;
  };
  // The end of such a wait without success: kTimeout, with the words of a dump.
  Status timedOut(Awaited what, Clock::time_point begin);

  // To be called by a thread that polls words itself, without wait(): for a while the context
  // counts as polling, and producers of those words need not ring. Therefore this call now and then
  // takes a turn, too.
  void looked() {
    if (forkGeneration() != forks_) return;
    keepAwake();
    if (activity_.load(std::memory_order_relaxed) % kLooksPerTurn == 0) turn();
  }

  // A store of a device rings no bell. While stores are expected, the progress thread polls by
  // itself, soon at first and then every millisecond. Each call must be matched by one of
  // deviceStoresSeen(). Cheap while the thread is awake or polls anyway.
  void expectDeviceStores() {
    deviceStores_.begin();
    if (deepAsleep_.load(std::memory_order_seq_cst)) loop_->wake();  // partner: run()
  }
  void deviceStoresSeen() { deviceStores_.end(); }

  // One pass over all tasks, unless another thread has the turn. True when something moved.
  bool turn();

  // The lines of describe() of every task, for dumps. One line with the reason when other threads
  // keep the turn for 100 ms.
  std::vector<std::string> describeTasks();
  // A line for each thread that has been in a wait with words for longer than kUnlisted: the
  // thread, the time waited, the limit, and the words. Otherwise as describeTasks().
  std::vector<std::string> describeWaits();

  // To be called after a change that waiting threads may wait for.
  void notifyWaiters();

  // To be called when work for a turn has appeared: waiting threads check their condition, and a
  // sleeping progress thread wakes and takes a turn. Any thread.
  void nudge() {
    notifyWaiters();
    wakeLoopIfAsleep();
  }

 private:
  struct Waiter {
    const std::function<bool()>* ready = nullptr;
    bool due = false;  // under waitMutex_
  };

  Progress(Duration spin, bool busyPoll, std::unique_ptr<EventLoop> loop,
           std::unique_ptr<ReadinessSet> readiness, std::unique_ptr<Bell> bell);
  void run();
  void takePending();
  bool turnTasks();
  bool turnUnlessTaken(bool& taken);
  Status usable() const;
  void wakeLoopIfAsleep();
  // A turn of the whole context after each look at the awaited word would cost latency; no turn at
  // all would starve the other work.
  static constexpr uint32_t kLooksPerTurn = 64;
  // A pause takes as long as the word needs to cross between cores, so most looks follow without
  // one.
  static constexpr uint32_t kLooksPerPause = 8;
  // One call of `advance()` takes about as long as so many looks at a word.
  static constexpr uint32_t kLooksPerAdvance = 16;
  struct Pace {
    bool takesTurns = true;
    uint32_t looks = 0;
    Clock::time_point begin{};  // of the wait, within the time of few looks
    Clock::time_point end{};
    std::optional<ListedWait> listed{};
    std::optional<ReadinessSet::Attendance> attendance{};
  };
  // Shorter waits are in no dump: they end before a person could read of them.
  static constexpr Duration kUnlisted = std::chrono::milliseconds(1);
  Status mayWait() const;
  Status beginWait();
  bool keepSpinning(Pace& pace, Clock::time_point deadline, Awaited what);
  // To be called while a thread waits, or polls words that a producer stores.
  void keepAwake() {
    activity_.store(activity_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    // Without producers there is nobody who need not ring.
    if (!burst_.load(std::memory_order_relaxed) && bell_->isGiven()) [[unlikely]]
      beginBurst();
  }
  void beginBurst();
  void endBurst();
  bool stillActive(uint64_t& seen);
  Duration napLength(bool othersTurn);
  bool lateLook();
  Status sleepUntil(const std::function<bool()>& ready, Pace& pace, Clock::time_point deadline,
                    Awaited what);
  void sleep(Waiter& waiter, Pace& pace, Clock::time_point deadline) PEERLANE_REQUIRES(waitMutex_);
  void attend(Pace& pace);
  // Takes the right to take turns, so that the caller may read state that turns write. False: other
  // threads had it until the deadline.
  bool holdTurns(Clock::time_point deadline);
  void letTurns() { turning_.store(false, std::memory_order_release); }
  bool pollBusily(const std::function<bool()>& ready, Clock::time_point deadline);

  const Duration spin_;
  const bool busyPoll_;
  Duration nap_{};        // loop thread: the last one while device stores were expected
  const uint64_t forks_;  // forkGeneration() of the process that has the thread
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<ReadinessSet> readiness_;
  std::unique_ptr<Bell> bell_;
  Watch bellWatch_;
  Watch dataWatch_;

  std::atomic<Task*> pending_{nullptr};       // pushed by add(), taken whole by the turning thread
  std::atomic<bool> turning_{false};          // exclusive right to a turn
  std::vector<std::shared_ptr<Task>> tasks_;  // under turning_

  std::atomic<bool> asleep_{
      false};  // the loop thread is (about to be) blocked; partner: wakeLoopIfAsleep
  std::atomic<bool> deepAsleep_{false};   // the same, and no device stores are expected
  SplitCount deviceStores_;               // stores of devices that are expected
  std::atomic<bool> burst_{false};        // the bell is held for threads that wait now and then
  std::atomic<uint64_t> activity_{0};     // of waiting threads; approximate, only its change counts
  std::atomic<uint32_t> busyPollers_{0};  // threads in pollBusily()
  std::atomic<bool> stop_{false};
  std::atomic<bool> stopped_{false};  // the thread has ended, and posted functions have run
  Counter* wakeups_ = nullptr;

  std::atomic<uint32_t> waiterCount_{0};
  Mutex waitMutex_;
  Condition waitChanged_;
  std::list<Waiter*> waiters_ PEERLANE_GUARDED_BY(waitMutex_);
  // The one that blocks on the descriptors of links, for all.
  Waiter* leader_ PEERLANE_GUARDED_BY(waitMutex_) = nullptr;
  // Set under the lock, and cleared by the leader before it takes the lock again: a thread that
  // makes it due under the lock interrupts it, or the leader sees afterwards that it is due.
  std::atomic<bool> leaderBlocks_{false};

  Mutex listMutex_;  // taken after the right to take turns
  std::list<ListedWait*> waits_ PEERLANE_GUARDED_BY(listMutex_);

  std::thread thread_;
};

}  // namespace peerlane
