// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/trigger/doorbell.h"

#include <span>
#include <string>
#include <utility>

namespace peerlane {

Doorbell::~Doorbell() {
  if (peer_.forked()) {
    // Its thread is not here, and locks may be held for ever.
    if (server_ != nullptr) (void)new std::shared_ptr<DoorbellServer>(std::move(server_));
    return;
  }
  if (mailbox_ == nullptr || !mailbox_->idle()) return;
  mailbox_->mirrorTo(nullptr);
  mailbox_->clearAbort();
  mailbox_->resetCode();
  peer_.mailboxes().giveBack(mailbox_);
}

Status Doorbell::join() {
  if (server_ != nullptr) return Status::ok();
  PEERLANE_ASSIGN(server_, DoorbellServer::of(peer_.progress(), peer_.config().spin));
  server_->add(*this);
  return Status::ok();
}

Status Doorbell::open(uint32_t operations) {
  PEERLANE_RETURN_IF_ERROR(join());
  mailbox_ = peer_.mailboxes().borrow(operations);
  rung_ = mailbox_->claimed();
  allow(rung_);
  health_.words().bell.store(rung_, std::memory_order_relaxed);
  health_.words().count.store(rung_, std::memory_order_relaxed);
  mailbox_->mirrorTo(&health_.mirror());
  isOpen_.store(true, std::memory_order_release);  // partner: look()
  return Status::ok();
}

void Doorbell::close() {
  if (server_ == nullptr) return;
  server_->remove(*this);
  if (isOpen()) mailbox_->unclaim(mailbox_->claimed() - rung_);
  // Its last user ends its thread, which may be this one.
  peer_.progress().post([server = std::move(server_)]() mutable { server.reset(); });
}

// True: it rang.
bool Doorbell::lookAtBell() {
  const uint64_t bell = health_.words().bell.load(std::memory_order_acquire);
  if (bell == rung_ || health_.hasFailed()) return false;
  const uint64_t allowed = allowed_.load(std::memory_order_acquire);
  if (bell >= rung_ && bell <= allowed) {
    ring(bell);
    return true;
  }
  abort(Code::kInvalidArgument);
  health_.fail(Status(Code::kInvalidArgument, "the executor stored " + std::to_string(bell) +
                                                  " to the bell of a triggered queue to " +
                                                  peer_.name() + "; " + std::to_string(rung_) +
                                                  " to " + std::to_string(allowed) +
                                                  " were enqueued"));
  peer_.progress().nudge();
  return false;
}

Proxy::Turn Doorbell::look() {
  const bool hasMailbox = isOpen();
  bool moved = hasMailbox && lookAtBell();
  moved |= tellArrivals();
  if (!hasMailbox || !mailbox_->pending()) {
    if (moved) return Proxy::Turn::kMoved;
    const bool waits = expecting_.load(std::memory_order_relaxed) != 0 && !health_.hasFailed();
    return waits ? Proxy::Turn::kPending : Proxy::Turn::kIdle;
  }
  moved |= mailbox_->serve();
  // For threads that wait for the count, and for the end of the commit.
  if (!mailbox_->pending()) peer_.progress().nudge();
  return moved ? Proxy::Turn::kMoved : Proxy::Turn::kPending;
}

void Doorbell::expect(std::span<const TriggerArrival> arrivals) {
  const MutexLock lock(mutex_);
  expected_.insert(expected_.end(), arrivals.begin(), arrivals.end());
  expecting_.store(static_cast<uint32_t>(expected_.size()), std::memory_order_relaxed);
}

bool Doorbell::tellArrivals() {
  if (expecting_.load(std::memory_order_relaxed) == 0) return false;
  const MutexLock lock(mutex_);
  uint64_t come = 0;
  for (; !expected_.empty() && health_.haveArrived({&expected_.front(), 1}); ++come)
    expected_.pop_front();
  if (come == 0) return false;
  expecting_.store(static_cast<uint32_t>(expected_.size()), std::memory_order_relaxed);
  // Only this thread adds; a poison stays.
  std::atomic<uint64_t>& arrived = health_.words().arrived;
  uint64_t told = arrived.load(std::memory_order_relaxed);
  if (!isPoison(told))
    arrived.compare_exchange_strong(told, told + come, std::memory_order_acq_rel);
  return true;
}

void Doorbell::ring(uint64_t bell) {
  const MutexLock lock(mutex_);
  if (health_.hasFailed()) return;
  rung_ = bell;
  mailbox_->ringTo(bell);
}

}  // namespace peerlane
