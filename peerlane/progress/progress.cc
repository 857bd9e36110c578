// SPDX-License-Identifier: Apache-2.0
#include "peerlane/progress/progress.h"

#include <unistd.h>

#include <algorithm>
#include <future>

#include "peerlane/core/device_code.h"
#include "peerlane/os/process.h"
#include "peerlane/os/thread.h"

namespace peerlane {
namespace {

// A wait spins politely after this many looks: on a machine with few cores the other side may need
// this core.
constexpr uint32_t kLooksPerYield = 512;
// How long a context counts as polling after the last wait: also the longest an unattended store
// can go unseen.
constexpr Progress::Duration kBurstLinger = std::chrono::microseconds(250);
// Between looks for what a device stores; doubled each time nothing came.
constexpr Progress::Duration kFirstNap = std::chrono::microseconds(50);
constexpr Progress::Duration kLongestNap = std::chrono::milliseconds(1);
constexpr Progress::Duration kDeepSleep = std::chrono::hours(1);
// Longer than all steps of a set-up together.
constexpr Progress::Duration kBusyPoll = std::chrono::microseconds(500);
// A turn takes microseconds; one that takes longer is in code of the user.
constexpr Progress::Duration kLongestTurn = std::chrono::milliseconds(100);

std::string turnStands() {
  return "other threads have had the turn for " + durationInWords(kLongestTurn) +
         "; one may stand in a callback, or in a sink of the log";
}

// The progress thread may need this core: it has it, then, and this thread is not to be woken.
bool yieldUntil(const std::function<bool()>& ready, Progress::Clock::time_point end) {
  bool isReady = false;
  while (!(isReady = ready()) && Progress::Clock::now() < end) std::this_thread::yield();
  return isReady;
}

}  // namespace

Progress::Progress(Duration spin, bool busyPoll, std::unique_ptr<EventLoop> loop,
                   std::unique_ptr<ReadinessSet> readiness, std::unique_ptr<Bell> bell)
    : spin_(spin),
      busyPoll_(busyPoll),
      forks_(forkGeneration()),
      loop_(std::move(loop)),
      readiness_(std::move(readiness)),
      bell_(std::move(bell)) {}

Result<std::unique_ptr<Progress>> Progress::create(Duration spin, Counter* wakeups, bool busyPoll) {
  PEERLANE_ASSIGN(auto loop, EventLoop::create());
  PEERLANE_ASSIGN(auto readiness, ReadinessSet::create());
  PEERLANE_ASSIGN(auto bell, Bell::create());
  std::unique_ptr<Progress> progress(
      new Progress(spin, busyPoll, std::move(loop), std::move(readiness), std::move(bell)));
  Progress* self = progress.get();
  self->wakeups_ = wakeups;
  PEERLANE_ASSIGN(self->bellWatch_, self->loop_->watch(self->bell_->eventFd(), true, false, [self] {
    drainEventFd(self->bell_->eventFd());
    if (self->wakeups_ != nullptr) self->wakeups_->add();
  }));
  // The turn after it reads.
  PEERLANE_ASSIGN(self->dataWatch_,
                  self->loop_->watch(self->readiness_->gate(), true, false, [] {}));
  PEERLANE_ASSIGN(self->thread_, startThread("a context's progress", [self] { self->run(); }));
  return progress;
}

Progress::~Progress() {
  stop();
}

void Progress::stop() {
  stop_.store(true, std::memory_order_seq_cst);
  loop_->wake();
  if (thread_.joinable()) {
    thread_.join();
    // Functions posted last run here, because they own objects that must be released.
    for (int rounds = 0; rounds < 16 && loop_->poll() > 0; ++rounds) {
    }
  }
  stopped_.store(true, std::memory_order_release);
  // Other threads may still wait, and take turns meanwhile.
  (void)holdTurns(Clock::time_point::max());
  takePending();
  const std::vector<std::shared_ptr<Task>> dropped = std::exchange(tasks_, {});
  letTurns();
}

// While other threads wait every now and then (a burst), or attend to the links, this one leaves
// the work to them after one look: it would only take a core from the two sides of a conversation.
void Progress::run() {
  const LoopThreadScope here;  // in turns, too
  uint64_t activitySeen = 0;
  while (!stop_.load(std::memory_order_acquire)) {
    bell_->enter();
    Clock::time_point lastMove = Clock::now();
    while (!stop_.load(std::memory_order_acquire)) {
      const bool isBusy = busyPollers_.load(std::memory_order_relaxed) != 0;
      const bool ran = (isBusy ? loop_->poll() : loop_->spin()) > 0;
      const bool moved = turn() || ran;
      const Clock::time_point now = Clock::now();
      const bool othersLook = burst_.load(std::memory_order_relaxed) || readiness_->isAttended();
      if (!moved && !isBusy && othersLook) break;
      // A thread of the user's may have something to do on this core.
      if (!moved && !busyPoll_) std::this_thread::yield();
      if (moved) {
        lastMove = now;
        nap_ = {};
      } else if (!isBusy && now - lastMove >= (nap_ == Duration{} ? spin_ : Duration{})) {
        break;
      }
      cpuRelax();
    }
    asleep_.store(true, std::memory_order_seq_cst);  // partner: wakeLoopIfAsleep
    bell_->leave();
    const bool othersTurn = burst_.load(std::memory_order_seq_cst) && stillActive(activitySeen);
    const bool late = othersTurn ? pending_.load(std::memory_order_seq_cst) != nullptr : lateLook();
    if (!late && !stop_.load(std::memory_order_seq_cst)) loop_->waitOnce(napLength(othersTurn));
    deepAsleep_.store(false, std::memory_order_relaxed);
    asleep_.store(false, std::memory_order_seq_cst);
  }
}

// Once no work has come for a while and no device store is expected, only a ring wakes this thread.
// A thread that calls expectDeviceStores() from then on reads `deepAsleep_` as true, or this thread
// sees its count.
Progress::Duration Progress::napLength(bool othersTurn) {
  if (othersTurn) return kBurstLinger;
  if (nap_ < kLongestNap && (nap_ != Duration{} || !deviceStores_.none())) {
    nap_ = nap_ == Duration{} ? kFirstNap : std::min(2 * nap_, kLongestNap);
    return nap_;
  }
  deepAsleep_.store(true, std::memory_order_seq_cst);  // partner: expectDeviceStores
  if (!deviceStores_.none()) {
    deepAsleep_.store(false, std::memory_order_relaxed);
    nap_ = kLongestNap;
    return nap_;
  }
  nap_ = {};
  return kDeepSleep;
}

// False ends the burst.
bool Progress::stillActive(uint64_t& seen) {
  const uint64_t activity = activity_.load(std::memory_order_relaxed);
  if (activity != std::exchange(seen, activity)) return true;
  if (burst_.exchange(false, std::memory_order_seq_cst)) bell_->leave();
  return false;
}

// The look after leaving the bell: stores and tasks from before the count fell rang no bell. A turn
// of another thread does not suffice: it may be past the task that matters.
bool Progress::lateLook() {
  bool taken = false;
  return turnUnlessTaken(taken) || taken || pending_.load(std::memory_order_seq_cst) != nullptr;
}

void Progress::wakeLoopIfAsleep() {
  if (asleep_.load(std::memory_order_seq_cst)) loop_->wake();
}

void Progress::addQuietly(std::shared_ptr<Task> task) {
  Task* raw = task.get();
  PEERLANE_CHECK(raw->keepAlive_ == nullptr);
  raw->keepAlive_ = std::move(task);
  Task* head = pending_.load(std::memory_order_relaxed);
  do {
    raw->nextPending_ = head;
  } while (!pending_.compare_exchange_weak(head, raw, std::memory_order_seq_cst));
}

void Progress::takePending() {
  // The list has the task pushed last at its head; tasks are independent, but the order of posting
  // is fairer.
  if (pending_.load(std::memory_order_relaxed) == nullptr) return;
  Task* task = pending_.exchange(nullptr, std::memory_order_acquire);
  const size_t before = tasks_.size();
  // Taken over whole: a task may be added again as soon as it knows that it is finished, which is
  // before its turn returned.
  while (task != nullptr) {
    Task* next = task->nextPending_;
    tasks_.push_back(std::move(task->keepAlive_));
    task = next;
  }
  const auto added = tasks_.begin() + static_cast<std::ptrdiff_t>(before);
  std::reverse(added, tasks_.end());
  // One by one, for they are few, and std::stable_partition asks for memory.
  const auto isFirst = [](const std::shared_ptr<Task>& each) { return each->isFirst(); };
  auto later = std::partition_point(tasks_.begin(), added, isFirst);
  for (auto each = added; each != tasks_.end(); ++each)
    if (isFirst(*each)) std::rotate(later++, each, each + 1);
}

Status Progress::usable() const {
  if (forkGeneration() == forks_) return Status::ok();
  return Status(Code::kNotSupported,
                "the progress thread is not in this process: the context was made before fork()");
}

bool Progress::pollBusily(const std::function<bool()>& ready, Clock::time_point deadline) {
  if (!busyPoll_) return yieldUntil(ready, std::min(deadline, Clock::now() + spin_));
  busyPollers_.fetch_add(1, std::memory_order_relaxed);
  wakeLoopIfAsleep();
  const Clock::time_point end = std::min(deadline, Clock::now() + kBusyPoll);
  bool isReady = false;
  while (!(isReady = ready()) && Clock::now() < end)
    for (int i = 0; i < 8; ++i) cpuRelax();
  busyPollers_.fetch_sub(1, std::memory_order_relaxed);
  return isReady;
}

Status Progress::call(std::function<void()> fn, Clock::time_point deadline) {
  PEERLANE_RETURN_IF_ERROR(usable());
  if (onLoopThread())
    return Status(Code::kInvalidArgument,
                  "a blocking call was made from a callback on the progress thread");
  if (stop_.load(std::memory_order_acquire)) return Status(Code::kClosed, "the context has ended");
  // Shared: after a timeout the posted function stays in the loop and outlives this call, without
  // running `fn`.
  struct Call {
    std::promise<void> promise;
    std::atomic<bool> isTaken{false};  // by the progress thread, which begins; or taken back
    std::atomic<bool> isDone{false};
  };
  const auto call = std::make_shared<Call>();
  auto ended = call->promise.get_future();
  loop_->post([call, fn = std::move(fn)] {
    if (call->isTaken.exchange(true, std::memory_order_acq_rel)) return;
    fn();
    call->isDone.store(true, std::memory_order_release);
    call->promise.set_value();
  });
  if (pollBusily([&] { return call->isDone.load(std::memory_order_acquire); }, deadline))
    return Status::ok();
  const auto begin = Clock::now();
  while (ended.wait_until(std::min(deadline, Clock::now() + std::chrono::milliseconds(50))) !=
         std::future_status::ready) {
    if (stopped_.load(std::memory_order_acquire))
      return Status(Code::kClosed, "the context has ended");
    if (Clock::now() < deadline) continue;
    if (!call->isTaken.exchange(true, std::memory_order_acq_rel))
      return Status(Code::kTimeout, "waited " + durationInWords(Clock::now() - begin) +
                                        " for the progress thread, which is busy or stands in a "
                                        "callback");
    deadline = Clock::time_point::max();  // `fn` is running and uses the caller's objects
  }
  return Status::ok();
}

bool Progress::turnTasks() {
  takePending();
  readiness_->look();
  bool moved = false;
  // Meanwhile a task's turn may add others only to pending_. In one pass: where many tasks end at
  // once, each would otherwise move all tasks after it.
  std::erase_if(tasks_, [&moved](const std::shared_ptr<Task>& task) {
    const Task::Turn result = task->turn();
    moved |= result != Task::Turn::kIdle;
    return result == Task::Turn::kFinished;
  });
  return moved;
}

bool Progress::turn() {
  bool taken = false;
  return turnUnlessTaken(taken);
}

bool Progress::turnUnlessTaken(bool& taken) {
  taken = turning_.exchange(true, std::memory_order_acquire);
  if (taken) return false;
  const bool moved = turnTasks();
  turning_.store(false, std::memory_order_release);
  // Partner: addFor().
  if (moved && pending_.load(std::memory_order_seq_cst) != nullptr) wakeLoopIfAsleep();
  notifyWaiters();
  return moved;
}

bool Progress::holdTurns(Clock::time_point deadline) {
  while (turning_.exchange(true, std::memory_order_acquire)) {
    if (Clock::now() >= deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

std::vector<std::string> Progress::describeTasks() {
  if (!holdTurns(Clock::now() + kLongestTurn)) return {"cannot be shown: " + turnStands()};
  takePending();
  std::vector<std::string> lines;
  for (const auto& task : tasks_)
    if (std::string line = task->describe(); !line.empty()) lines.push_back(std::move(line));
  letTurns();
  return lines;
}

std::vector<std::string> Progress::describeWaits() {
  if (!holdTurns(Clock::now() + kLongestTurn)) return {"cannot be shown: " + turnStands()};
  std::vector<std::string> lines;
  {
    const MutexLock lock(listMutex_);
    const Clock::time_point now = Clock::now();
    for (const ListedWait* wait : waits_) lines.push_back(wait->line(now));
  }
  letTurns();
  return lines;
}

Progress::ListedWait::ListedWait(Progress& progress, Awaited what, Clock::time_point begin,
                                 Clock::time_point deadline)
    : progress_(progress), what_(what), begin_(begin), deadline_(deadline), thread_(gettid()) {
  if (!what_) return;
  const MutexLock lock(progress_.listMutex_);
  progress_.waits_.push_back(this);
}

Progress::ListedWait::~ListedWait() {
  if (!what_) return;
  const MutexLock lock(progress_.listMutex_);
  progress_.waits_.remove(this);
}

std::string Progress::ListedWait::line(Clock::time_point now) const {
  return "thread " + std::to_string(thread_) + " has waited " + durationInWords(now - begin_) +
         " (at most " + durationInWords(deadline_ - begin_) + ") for " + what_.text();
}

Status Progress::timedOut(Awaited what, Clock::time_point begin) {
  const Clock::time_point now = Clock::now();
  const std::string waited = "waited " + durationInWords(now - begin);
  if (!what) return Status(Code::kTimeout, waited);
  // A call with a short timeout is not delayed for long by its error text.
  constexpr Duration kMoment = std::chrono::milliseconds(10);
  if (!holdTurns(now + std::clamp<Duration>(now - begin, kMoment, kLongestTurn)))
    return Status(Code::kTimeout, waited + "; for what, cannot be said: " + turnStands());
  const std::string text = what.text();
  letTurns();
  return Status(Code::kTimeout, waited + " for " + text);
}

void Progress::notifyWaiters() {
  if (waiterCount_.load(std::memory_order_seq_cst) == 0) return;
  const MutexLock lock(waitMutex_);
  bool anyDue = false;
  for (Waiter* waiter : waiters_) {
    if (!waiter->due && (*waiter->ready)()) waiter->due = true;
    anyDue |= waiter->due;
  }
  if (!anyDue) return;
  waitChanged_.notifyAll();
  if (leader_ != nullptr && leader_->due && leaderBlocks_.load(std::memory_order_relaxed))
    readiness_->interrupt();
}

// While threads wait every now and then, the context counts as polling ("burst") and producers ring
// no bell: beginning a wait costs a load and a store. The loop thread ends the burst some time
// after the last wait, and a thread whose wait goes to sleep ends it at once; the thread that ends
// it must then take a turn, or have the loop thread take one.
void Progress::beginBurst() {
  // Enter first: another thread may end the burst, and leave the bell, as soon as it reads burst_.
  bell_->enter();
  if (burst_.exchange(true, std::memory_order_seq_cst)) bell_->leave();
  loop_->wake();  // in either case: the loop thread takes the look that must follow a leave
}

Status Progress::mayWait() const {
  PEERLANE_RETURN_IF_ERROR(usable());
  if (onLoopThread())
    return Status(Code::kInvalidArgument,
                  "a blocking wait was made from a callback on the progress thread");
  return Status::ok();
}

Status Progress::beginWait() {
  PEERLANE_RETURN_IF_ERROR(mayWait());
  keepAwake();
  return Status::ok();
}

bool Progress::keepSpinning(Pace& pace, Clock::time_point deadline, Awaited what) {
  ++pace.looks;
  if (pace.looks % kLooksPerPause == 0) cpuRelax();
  if (pace.looks % kLooksPerTurn != 0) return true;
  keepAwake();
  attend(pace);
  turn();
  if (pace.looks % kLooksPerYield == 0) std::this_thread::yield();
  const Clock::time_point now = Clock::now();
  if (pace.begin == Clock::time_point{}) pace.begin = now;
  if (pace.end == Clock::time_point{}) pace.end = std::min(deadline, now + spin_);
  if (what && !pace.listed && now - pace.begin >= kUnlisted)
    pace.listed.emplace(*this, what, pace.begin, deadline);
  return now < pace.end;
}

// From now on producers ring. If another thread has the turn, the loop thread takes the look after
// leaving: the other thread may be past the task that matters.
void Progress::endBurst() {
  if (!burst_.load(std::memory_order_relaxed) || !burst_.exchange(false, std::memory_order_seq_cst))
    return;
  bell_->leave();
  bool taken = false;
  turnUnlessTaken(taken);
  if (taken) loop_->wake();
}

// From now on this wait looks at the descriptors of links itself.
void Progress::attend(Pace& pace) {
  if (pace.takesTurns && !pace.attendance && !readiness_->isEmpty())
    pace.attendance.emplace(*readiness_);
}

// One of the sleepers, the leader, blocks on the descriptors of links and takes a turn when data
// has come, so that a message wakes the thread that waits for it and no other. It leaves the lead
// to the next one.
void Progress::sleep(Waiter& waiter, Pace& pace, Clock::time_point deadline) {
  bool isInTime = true;
  while (!waiter.due && isInTime) {
    if (!pace.attendance || (leader_ != nullptr && leader_ != &waiter)) {
      if (pace.attendance) pace.attendance->rest();
      isInTime = waitChanged_.waitUntil(waitMutex_, deadline);
      continue;
    }
    leader_ = &waiter;
    leaderBlocks_.store(true, std::memory_order_relaxed);
    waitMutex_.unlock();
    if (readiness_->isOwed()) turn();
    pace.attendance->rest();
    const bool hasData = readiness_->block(deadline);
    leaderBlocks_.store(false, std::memory_order_relaxed);
    pace.attendance->goOn();
    if (hasData) turn();
    waitMutex_.lock();
    isInTime = Clock::now() < deadline;
  }
  if (leader_ != &waiter) return;
  leader_ = nullptr;
  if (waiters_.size() > 1) waitChanged_.notifyAll();
}

Status Progress::sleepUntil(const std::function<bool()>& ready, Pace& pace,
                            Clock::time_point deadline, Awaited what) {
  endBurst();
  if (!pace.listed) pace.listed.emplace(*this, what, pace.begin, deadline);
  Waiter waiter{&ready, false};
  attend(pace);
  ReleasableLock lock(waitMutex_);
  waiters_.push_back(&waiter);
  bell_->listen();
  // Sequentially consistent: a thread that leaves the bell after this sees this waiter, or ready()
  // here sees the stores from before.
  waiterCount_.fetch_add(1, std::memory_order_seq_cst);
  waiter.due = ready();
  sleep(waiter, pace, deadline);
  waiters_.remove(&waiter);
  waiterCount_.fetch_sub(1, std::memory_order_relaxed);
  bell_->stopListening();
  lock.unlock();
  pace.listed.reset();
  if (waiter.due || ready()) return Status::ok();
  return timedOut(what, pace.begin);
}

}  // namespace peerlane
