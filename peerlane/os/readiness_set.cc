// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/readiness_set.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace peerlane {
namespace {

constexpr uint64_t kTimerNumber = 0;  // no member has it

Status control(int set, int operation, int fd, uint32_t events, uint64_t number) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = number;
  if (::epoll_ctl(set, operation, fd, &event) == 0) return Status::ok();
  return Status::system(errno, "epoll_ctl");
}

}  // namespace

Result<std::unique_ptr<ReadinessSet>> ReadinessSet::create() {
  std::unique_ptr<ReadinessSet> set(new ReadinessSet());
  for (Fd* epoll : {&set->members_, &set->gate_}) {
    *epoll = Fd(::epoll_create1(EPOLL_CLOEXEC));
    if (!*epoll) return Status::system(errno, "epoll_create1");
  }
  set->timer_ = Fd(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!set->timer_) return Status::system(errno, "timerfd_create");
  PEERLANE_ASSIGN(set->interrupt_, makeEventFd());
  PEERLANE_RETURN_IF_ERROR(
      control(set->members_.get(), EPOLL_CTL_ADD, set->timer_.get(), EPOLLIN, kTimerNumber));
  PEERLANE_RETURN_IF_ERROR(
      control(set->gate_.get(), EPOLL_CTL_ADD, set->members_.get(), EPOLLIN, 0));
  return set;
}

Result<std::shared_ptr<ReadinessSet::Member>> ReadinessSet::add(int fd, bool isOften) {
  auto member = std::make_shared<Member>();
  member->fd = fd;
  member->isOften = isOften;
  const MutexLock lock(mutex_);
  member->number = ++lastNumber_;
  PEERLANE_RETURN_IF_ERROR(control(members_.get(), EPOLL_CTL_ADD, fd, EPOLLIN, member->number));
  byNumber_.emplace(member->number, member);
  if (isOften) often_.push_back(member);
  count_.fetch_add(1, std::memory_order_release);
  return member;
}

void ReadinessSet::remove(const Member& member) {
  const MutexLock lock(mutex_);
  if (byNumber_.erase(member.number) == 0) return;
  std::erase_if(often_, [&](const auto& each) { return each->number == member.number; });
  (void)control(members_.get(), EPOLL_CTL_DEL, member.fd, 0, 0);
  // look() does not run any more, and the timer would stay ready.
  if (count_.fetch_sub(1, std::memory_order_release) == 1 && std::exchange(timerRuns_, false))
    setTimer(std::chrono::nanoseconds(0));
}

void ReadinessSet::wantRoom(const Member& member, bool wanted) {
  const MutexLock lock(mutex_);
  if (!byNumber_.contains(member.number)) return;
  const uint32_t events = EPOLLIN | (wanted ? uint32_t{EPOLLOUT} : 0u);
  (void)control(members_.get(), EPOLL_CTL_MOD, member.fd, events, member.number);
}

void ReadinessSet::look() {
  if (isEmpty()) return;
  const MutexLock lock(mutex_);
  // Also when it has not run out yet: this turn pays what is owed.
  if (std::exchange(timerRuns_, false)) setTimer(std::chrono::nanoseconds(0));
  if (often_.size() <= kFew) {
    for (const auto& member : often_) {
      member->mayRead.store(true, std::memory_order_relaxed);
      member->mayWrite.store(true, std::memory_order_relaxed);
    }
    if (often_.size() == byNumber_.size() || ++looks_ < kLooksPerAsk) return;
  }
  looks_ = 0;
  std::array<epoll_event, 64> events;
  const int count = ::epoll_wait(members_.get(), events.data(), events.size(), 0);
  for (int i = 0; i < count; ++i) {
    const auto found = byNumber_.find(events[static_cast<size_t>(i)].data.u64);
    if (found == byNumber_.end()) continue;
    const uint32_t ready = events[static_cast<size_t>(i)].events;
    if ((ready & ~uint32_t{EPOLLOUT}) != 0)
      found->second->mayRead.store(true, std::memory_order_relaxed);
    if ((ready & EPOLLOUT) != 0) found->second->mayWrite.store(true, std::memory_order_relaxed);
    if (!found->second->isOften) looks_ = kLooksPerAsk;  // more may come: it asks next time
  }
}

// 0 stops it, and makes it unready.
void ReadinessSet::setTimer(std::chrono::nanoseconds time) {
  itimerspec when{};
  when.it_value.tv_nsec = time.count();
  (void)::timerfd_settime(timer_.get(), 0, &when, nullptr);
}

// A level-triggered member that is ready makes the gate readable as soon as it is back in it.
void ReadinessSet::setGate(bool open) {
  (void)control(gate_.get(), EPOLL_CTL_MOD, members_.get(), open ? uint32_t{EPOLLIN} : 0u, 0);
}

void ReadinessSet::attend() {
  const MutexLock lock(mutex_);
  active_.fetch_add(1, std::memory_order_seq_cst);
  if (attending_.fetch_add(1, std::memory_order_acq_rel) == 0) setGate(false);
}

void ReadinessSet::leave(bool isResting) {
  const MutexLock lock(mutex_);
  const bool isLast = attending_.fetch_sub(1, std::memory_order_seq_cst) == 1;
  if (!isResting) active_.fetch_sub(1, std::memory_order_seq_cst);
  payLater();  // partner: owe()
  if (isLast) setGate(true);
}

void ReadinessSet::rest() {
  active_.fetch_sub(1, std::memory_order_seq_cst);
  if (owed_.load(std::memory_order_seq_cst) == 0) return;  // partner: owe()
  const MutexLock lock(mutex_);
  payLater();
}

void ReadinessSet::owe() {
  owed_.fetch_add(1, std::memory_order_seq_cst);
  if (active_.load(std::memory_order_seq_cst) != 0) return;  // partners: leave(), rest()
  const MutexLock lock(mutex_);
  payLater();
}

void ReadinessSet::payLater() {
  if (timerRuns_ || byNumber_.empty() || owed_.load(std::memory_order_seq_cst) == 0) return;
  timerRuns_ = true;
  setTimer(kOwed);
}

bool ReadinessSet::block(Clock::time_point deadline) {
  std::array<pollfd, 2> fds{pollfd{members_.get(), POLLIN, 0}, pollfd{interrupt_.get(), POLLIN, 0}};
  const auto left = std::clamp<std::chrono::nanoseconds>(
      deadline - Clock::now(), std::chrono::nanoseconds(0), std::chrono::hours(1));
  timespec timeout{};
  timeout.tv_sec = std::chrono::duration_cast<std::chrono::seconds>(left).count();
  timeout.tv_nsec = (left % std::chrono::seconds(1)).count();
  if (::ppoll(fds.data(), fds.size(), &timeout, nullptr) <= 0) return false;
  if (fds[1].revents != 0) drainEventFd(interrupt_.get());
  return fds[0].revents != 0;
}

void ReadinessSet::interrupt() {
  signalEventFd(interrupt_.get());
}

}  // namespace peerlane
