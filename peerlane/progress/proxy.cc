// SPDX-License-Identifier: Apache-2.0
#include "peerlane/progress/proxy.h"

#include <poll.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "peerlane/core/device_code.h"
#include "peerlane/os/thread.h"

namespace peerlane {
namespace {

using Clock = std::chrono::steady_clock;
// A thread sleeps some 50 us longer than it asked for, so less would only cost more.
constexpr Proxy::Duration kShortestNap = std::chrono::microseconds(10);
constexpr Proxy::Duration kPendingNap = std::chrono::microseconds(50);

}  // namespace

Result<std::unique_ptr<Proxy>> Proxy::create(std::function<Turn()> turn, const Pace& pace) {
  if (pace.longestNap <= Duration::zero() || pace.longestNap > std::chrono::milliseconds(100))
    return Status(Code::kInvalidArgument, "the proxy's longest nap is " +
                                              std::to_string(pace.longestNap.count()) +
                                              " ns; more than 0 and at most 100 ms would do");
  PEERLANE_ASSIGN(Fd bell, makeEventFd());
  return std::unique_ptr<Proxy>(new Proxy(std::move(turn), pace, std::move(bell)));
}

Status Proxy::start() {
  const MutexLock lock(mutex_);
  if (thread_.joinable()) return Status::ok();
  stop_.store(false, std::memory_order_relaxed);
  PEERLANE_ASSIGN(thread_, startThread("a proxy", [this] { run(); }));
  running_.store(true, std::memory_order_release);
  return Status::ok();
}

void Proxy::stop() {
  const MutexLock lock(mutex_);
  if (!thread_.joinable()) return;
  stop_.store(true, std::memory_order_release);
  signalEventFd(bell_.get());
  thread_.join();
  thread_ = {};
  running_.store(false, std::memory_order_release);
}

void Proxy::wake() {
  isArmed_.store(true, std::memory_order_relaxed);  // the descriptor orders it
  signalEventFd(bell_.get());
}

void Proxy::prod() {
  signalEventFd(bell_.get());
}

Proxy::Duration Proxy::napAfter(Duration rest, const Pace& pace) {
  // A day squared is no 64-bit number of nanoseconds.
  const double square = static_cast<double>(rest.count()) * static_cast<double>(rest.count());
  const double nap = std::min(square / static_cast<double>(pace.napScale.count()),
                              static_cast<double>(pace.longestNap.count()));
  return std::min(std::max(Duration(static_cast<int64_t>(nap)), kShortestNap), pace.longestNap);
}

void Proxy::run() {
  id_.store(std::this_thread::get_id());
  endSleepsInTime();
  Clock::time_point restsSince = Clock::now();
  Clock::time_point awakeUntil = restsSince + pace_.spin;
  while (!stop_.load(std::memory_order_acquire)) {
    const Turn turned = turn_();
    const Clock::time_point now = Clock::now();
    if (turned != Turn::kIdle) restsSince = now;
    if (turned == Turn::kMoved) {
      awakeUntil = std::max(awakeUntil, now + pace_.spin);
      continue;
    }
    if (now < awakeUntil) {
      cpuRelax();
      continue;
    }
    const Duration most = std::exchange(nextNap_, Duration::max());
    const Duration length = turned == Turn::kPending ? std::min(kPendingNap, pace_.longestNap)
                                                     : napAfter(now - restsSince, pace_);
    if (!nap(std::min(length, most))) continue;
    restsSince = Clock::now();
    const bool isArmed = isArmed_.exchange(false, std::memory_order_relaxed);
    awakeUntil = restsSince + (isArmed ? std::max(pace_.armed, pace_.spin) : pace_.spin);
  }
}

// True when it was ended by wake().
bool Proxy::nap(Duration length) {
  naps_.fetch_add(1, std::memory_order_relaxed);
  pollfd bell{.fd = bell_.get(), .events = POLLIN, .revents = 0};
  const timespec most{.tv_sec = 0, .tv_nsec = static_cast<long>(length.count())};
  if (::ppoll(&bell, 1, &most, nullptr) <= 0) return false;
  (void)drainEventFd(bell_.get());
  return true;
}

}  // namespace peerlane
