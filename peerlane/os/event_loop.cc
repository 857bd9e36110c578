// SPDX-License-Identifier: Apache-2.0
//
// Asio supplies the reactor and the timer queue. Three of its habits are corrected here. Its waits
// are one-shot and its poll() goes on while handlers make new work: therefore everything is armed
// at the start of a turn, and anything that functions register or post during a turn belongs to the
// next. And it wakes its thread while it holds a lock, which the woken thread wants next, so that
// this thread sleeps once more: therefore only the loop's thread calls asio, which takes no locks
// (ASIO_CONCURRENCY_HINT_UNSAFE), and other threads wake it by an eventfd.
#include "peerlane/os/event_loop.h"

#include <sys/stat.h>

#include <algorithm>
#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/steady_timer.hpp>
#include <atomic>
#include <cerrno>
#include <optional>
#include <string>
#include <system_error>
#include <unordered_set>
#include <utility>
#include <vector>

#include "peerlane/core/mutex.h"
#include "peerlane/os/fd.h"
#include "peerlane/os/transfer_status.h"

namespace peerlane {
namespace internal {

using Clock = std::chrono::steady_clock;
// Between looks of a thread that spins. A look costs a system call; messages mostly come in answer
// to one that has just gone, and each would wait for half of the longer one on its way.
constexpr std::chrono::microseconds kLookInterval{20};
constexpr std::chrono::microseconds kShortLookInterval{1};
constexpr std::chrono::microseconds kAnswerTime{50};

struct WatchRecord : std::enable_shared_from_this<WatchRecord> {
  LoopCore* loop = nullptr;
  std::optional<asio::posix::stream_descriptor> descriptor;  // none once the watch ended
  std::function<void()> fn;
  bool wantRead = false;
  bool wantWrite = false;
  bool armedRead = false;
  bool armedWrite = false;
  bool queued = false;   // in LoopCore::toArm
  bool running = false;  // fn is on the stack and must not be destroyed
};

struct TimerRecord : std::enable_shared_from_this<TimerRecord> {
  LoopCore* loop = nullptr;
  std::optional<asio::steady_timer> timer;  // none once run or cancelled
  std::function<void()> fn;
};

struct LoopCore {
  explicit LoopCore(Fd event)
      : wakeEvent(std::move(event)),
        io(ASIO_CONCURRENCY_HINT_UNSAFE),
        work(io.get_executor()),
        deadline(io),
        wakeups(io, wakeEvent.get()) {
    armWake();
  }
  ~LoopCore();

  void arm();
  void armWatch(const std::shared_ptr<WatchRecord>& record);
  void armTimer(const std::shared_ptr<TimerRecord>& record);
  void onReady(const std::shared_ptr<WatchRecord>& record, const asio::error_code& error,
               bool wanted);
  void runPosted();
  size_t turn();
  void blockUntil(EventLoop::Duration timeout);
  void armWake();
  // True when the caller must wake the loop's thread, once it has released the mutex.
  bool mustWake() PEERLANE_REQUIRES(mutex);

  const Fd wakeEvent;
  asio::io_context io;
  asio::executor_work_guard<asio::io_context::executor_type> work;
  asio::steady_timer deadline;
  asio::posix::stream_descriptor wakeups;
  std::unordered_set<WatchRecord*> watches;
  std::unordered_set<TimerRecord*> timers;
  std::vector<std::shared_ptr<WatchRecord>> toArm;
  std::vector<std::shared_ptr<TimerRecord>> toStart;
  std::vector<std::function<void()>> running;  // the posted functions of this turn
  size_t ran = 0;                              // user functions in this turn
  uint64_t deadlineRound = 0;
  bool expired = false;
  bool inTurn = false;
  Clock::time_point lastLook{};
  Clock::time_point lastRun{};  // of a function

  Mutex mutex;  // never held while a user function runs
  std::vector<std::function<void()>> posted PEERLANE_GUARDED_BY(mutex);
  bool blocked PEERLANE_GUARDED_BY(mutex) = false;
  bool kicked PEERLANE_GUARDED_BY(mutex) = false;
  bool wakeRequested PEERLANE_GUARDED_BY(mutex) = false;
  // Release by post(), read with acquire by spin(); a hint only, `posted` is read under the mutex.
  std::atomic<bool> hasPosted{false};
};

namespace {

// An exception that escapes would leave the loop half-way: the process ends where the mistake is.
void callUser(const std::function<void()>& fn) noexcept {
  fn();
}

void endWatch(const std::shared_ptr<WatchRecord>& record) {
  if (!record->descriptor) return;
  record->loop->watches.erase(record.get());
  (void)record->descriptor->release();
  record->descriptor.reset();
  record->loop = nullptr;
  if (!record->running) record->fn = nullptr;
}

void endTimer(const std::shared_ptr<TimerRecord>& record) {
  if (!record->timer) return;
  record->loop->timers.erase(record.get());
  record->timer.reset();
  record->loop = nullptr;
  record->fn = nullptr;
}

void queueArm(const std::shared_ptr<WatchRecord>& record) {
  bool needed =
      (record->wantRead && !record->armedRead) || (record->wantWrite && !record->armedWrite);
  if (!needed || record->queued) return;
  record->queued = true;
  record->loop->toArm.push_back(record);
}

// Scopes of this thread that exist.
thread_local int loopScopes = 0;

// Marks a turn; a nested turn would run functions where their caller does not expect it.
class TurnScope {
 public:
  explicit TurnScope(LoopCore& core) : core_(core) {
    PEERLANE_CHECK(!core_.inTurn);
    core_.inTurn = true;
    core_.ran = 0;
  }
  ~TurnScope() { core_.inTurn = false; }
  TurnScope(const TurnScope&) = delete;
  TurnScope& operator=(const TurnScope&) = delete;

 private:
  LoopCore& core_;
  const LoopThreadScope here_;
};

}  // namespace

LoopCore::~LoopCore() {
  PEERLANE_CHECK(!inTurn);
  // Destroying a function may destroy other handles: take one record at a time.
  while (!watches.empty()) endWatch((*watches.begin())->shared_from_this());
  while (!timers.empty()) endTimer((*timers.begin())->shared_from_this());
  toArm.clear();
  toStart.clear();
  (void)wakeups.release();  // `wakeEvent` closes it
}

void LoopCore::onReady(const std::shared_ptr<WatchRecord>& record, const asio::error_code& error,
                       bool wanted) {
  if (!record->descriptor || error == asio::error::operation_aborted) return;
  if (wanted) {
    ++ran;
    record->running = true;
    callUser(record->fn);
    record->running = false;
    if (!record->descriptor) {
      record->fn = nullptr;
      return;
    }
  }
  queueArm(record);
}

void LoopCore::armWatch(const std::shared_ptr<WatchRecord>& record) {
  if (!record->descriptor) return;
  if (record->wantRead && !record->armedRead) {
    record->armedRead = true;
    record->descriptor->async_wait(asio::posix::stream_descriptor::wait_read,
                                   [this, record](const asio::error_code& error) {
                                     record->armedRead = false;
                                     onReady(record, error, record->wantRead);
                                   });
  }
  if (record->wantWrite && !record->armedWrite) {
    record->armedWrite = true;
    record->descriptor->async_wait(asio::posix::stream_descriptor::wait_write,
                                   [this, record](const asio::error_code& error) {
                                     record->armedWrite = false;
                                     onReady(record, error, record->wantWrite);
                                   });
  }
}

void LoopCore::armTimer(const std::shared_ptr<TimerRecord>& record) {
  if (!record->timer) return;
  record->timer->async_wait([this, record](const asio::error_code& error) {
    if (error || !record->timer) return;
    std::function<void()> fn = std::move(record->fn);
    endTimer(record);
    ++ran;
    callUser(fn);
  });
}

void LoopCore::arm() {
  // Arming calls no user function, so the lists do not grow meanwhile.
  for (const auto& record : toArm) {
    record->queued = false;
    armWatch(record);
  }
  toArm.clear();
  for (const auto& record : toStart) armTimer(record);
  toStart.clear();
}

void LoopCore::runPosted() {
  if (!hasPosted.load(std::memory_order_acquire)) return;
  {
    const MutexLock lock(mutex);
    hasPosted.store(false, std::memory_order_relaxed);
    running.swap(posted);
  }
  for (const auto& fn : running) {
    ++ran;
    callUser(fn);
  }
  running.clear();
}

size_t LoopCore::turn() {
  lastLook = Clock::now();
  arm();
  io.poll();
  runPosted();
  if (ran != 0) lastRun = Clock::now();
  return ran;
}

void LoopCore::armWake() {
  wakeups.async_wait(asio::posix::stream_descriptor::wait_read, [this](const asio::error_code& e) {
    if (e) return;
    drainEventFd(wakeEvent.get());
    armWake();
  });
}

bool LoopCore::mustWake() {
  return blocked && !std::exchange(kicked, true);
}

// Runs reactor handlers one by one until a user function ran, wake() or post() was called, or time
// is up.
void LoopCore::blockUntil(EventLoop::Duration timeout) {
  uint64_t round = ++deadlineRound;
  expired = false;
  auto now = Clock::now();
  auto limit = std::min<EventLoop::Duration>(timeout, std::chrono::hours(24));
  deadline.expires_at(now + limit);
  deadline.async_wait([this, round](const asio::error_code& error) {
    if (!error && round == deadlineRound) expired = true;
  });
  while (ran == 0 && !expired) {
    io.run_one();
    const MutexLock lock(mutex);
    if (kicked) break;
  }
  deadline.cancel();
}

}  // namespace internal

using internal::LoopCore;

Watch::Watch() = default;
Watch::Watch(std::shared_ptr<internal::WatchRecord> record) : record_(std::move(record)) {}
Watch::Watch(Watch&&) noexcept = default;
Watch::~Watch() {
  end();
}
Watch& Watch::operator=(Watch&& other) noexcept {
  if (this != &other) {
    end();
    record_ = std::move(other.record_);
  }
  return *this;
}
Watch::operator bool() const {
  return record_ != nullptr && record_->descriptor.has_value();
}

void Watch::end() {
  if (auto record = std::move(record_)) internal::endWatch(record);
}

void Watch::setInterest(bool readable, bool writable) {
  if (record_ == nullptr || !record_->descriptor) return;
  record_->wantRead = readable;
  record_->wantWrite = writable;
  internal::queueArm(record_);
}

Timer::Timer() = default;
Timer::Timer(std::shared_ptr<internal::TimerRecord> record) : record_(std::move(record)) {}
Timer::Timer(Timer&&) noexcept = default;
Timer::~Timer() {
  cancel();
}
Timer& Timer::operator=(Timer&& other) noexcept {
  if (this != &other) {
    cancel();
    record_ = std::move(other.record_);
  }
  return *this;
}
bool Timer::pending() const {
  return record_ != nullptr && record_->timer.has_value();
}

void Timer::cancel() {
  if (auto record = std::move(record_)) internal::endTimer(record);
}

EventLoop::EventLoop(std::unique_ptr<LoopCore> core) : core_(std::move(core)) {}
EventLoop::~EventLoop() = default;

Result<std::unique_ptr<EventLoop>> EventLoop::create() {
  try {
    PEERLANE_ASSIGN(Fd event, makeEventFd());
    return std::unique_ptr<EventLoop>(new EventLoop(std::make_unique<LoopCore>(std::move(event))));
  } catch (const std::system_error& error) {
    return internal::descriptorError(error.code().value(),
                                     "epoll_create1 or timerfd_create, for an event loop");
  }
}

Result<Watch> EventLoop::watch(int fd, bool readable, bool writable, std::function<void()> fn) {
  struct stat file {};
  bool pollable = ::fstat(fd, &file) == 0 && !S_ISREG(file.st_mode) && !S_ISDIR(file.st_mode);
  if (!pollable || !fn) {
    return Status(Code::kInvalidArgument,
                  "cannot watch descriptor " + std::to_string(fd) +
                      "; accepted are open sockets, pipes and event, timer and process "
                      "descriptors, with a function to call");
  }
  auto record = std::make_shared<internal::WatchRecord>();
  asio::posix::stream_descriptor descriptor(core_->io);
  asio::error_code error;
  descriptor.assign(fd, error);
  if (error) {
    Status plain = Status::system(error.value(), "watch descriptor " + std::to_string(fd));
    return Status(Code::kInvalidArgument,
                  std::string(plain.message()) + "; one watch per descriptor");
  }
  record->loop = core_.get();
  record->descriptor.emplace(std::move(descriptor));
  record->fn = std::move(fn);
  record->wantRead = readable;
  record->wantWrite = writable;
  core_->watches.insert(record.get());
  internal::queueArm(record);
  return Watch(record);
}

Timer EventLoop::after(Duration delay, std::function<void()> fn) {
  auto record = std::make_shared<internal::TimerRecord>();
  record->loop = core_.get();
  auto limit = std::min<Duration>(delay, std::chrono::hours(24 * 365));
  record->timer.emplace(core_->io, internal::Clock::now() + limit);
  record->fn = std::move(fn);
  core_->timers.insert(record.get());
  core_->toStart.push_back(record);
  return Timer(record);
}

void EventLoop::post(std::function<void()> fn) {
  bool mustWake = false;
  {
    const MutexLock lock(core_->mutex);
    core_->posted.push_back(std::move(fn));
    core_->hasPosted.store(true, std::memory_order_release);
    mustWake = core_->mustWake();
  }
  if (mustWake) signalEventFd(core_->wakeEvent.get());
}

void EventLoop::wake() {
  bool mustWake = false;
  {
    const MutexLock lock(core_->mutex);
    core_->wakeRequested = true;
    mustWake = core_->mustWake();
  }
  if (mustWake) signalEventFd(core_->wakeEvent.get());
}

size_t EventLoop::poll() {
  internal::TurnScope scope(*core_);
  return core_->turn();
}

size_t EventLoop::spin() {
  const bool posted = core_->hasPosted.load(std::memory_order_acquire);
  if (posted) return poll();
  const auto now = internal::Clock::now();
  const auto interval = now - core_->lastRun < internal::kAnswerTime ? internal::kShortLookInterval
                                                                     : internal::kLookInterval;
  return now - core_->lastLook < interval ? 0 : poll();
}

size_t EventLoop::waitOnce(Duration timeout) {
  internal::TurnScope scope(*core_);
  size_t ran = core_->turn();
  bool blocks = false;
  {
    const MutexLock lock(core_->mutex);
    bool wake = std::exchange(core_->wakeRequested, false);
    if (ran > 0 || wake || timeout <= Duration::zero()) return ran;
    blocks = core_->posted.empty();
    core_->blocked = blocks;
  }
  if (blocks) {
    core_->arm();
    core_->blockUntil(timeout);
    const MutexLock lock(core_->mutex);
    core_->blocked = false;
    core_->kicked = false;
    core_->wakeRequested = false;
  }
  // Runs whatever else has become ready; nothing is armed again, so no watch runs twice in this
  // turn.
  core_->io.poll();
  core_->runPosted();
  core_->lastLook = internal::Clock::now();
  if (core_->ran != 0) core_->lastRun = core_->lastLook;
  return core_->ran;
}

LoopThreadScope::LoopThreadScope() {
  ++internal::loopScopes;
}

LoopThreadScope::~LoopThreadScope() {
  --internal::loopScopes;
}

bool LoopThreadScope::isHere() {
  return internal::loopScopes > 0;
}

}  // namespace peerlane
