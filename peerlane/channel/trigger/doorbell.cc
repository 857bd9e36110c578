// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/trigger/doorbell.h"

#include <string>
#include <utility>

namespace peerlane {

Doorbell::~Doorbell() {
  if (mailbox_ == nullptr || !mailbox_->idle()) return;
  mailbox_->mirrorTo(nullptr);
  mailbox_->clearAbort();
  mailbox_->resetCode();
  peer_.mailboxes().giveBack(mailbox_);
}

Status Doorbell::open(uint32_t operations) {
  PEERLANE_ASSIGN(server_, DoorbellServer::of(peer_.progress(), peer_.config().spin));
  mailbox_ = peer_.mailboxes().borrow(operations);
  rung_ = mailbox_->claimed();
  allow(rung_);
  health_.words().bell.store(rung_, std::memory_order_relaxed);
  health_.words().count.store(rung_, std::memory_order_relaxed);
  mailbox_->mirrorTo(&health_.mirror());
  isOpen_.store(true, std::memory_order_release);
  server_->add(*this);
  return Status::ok();
}

void Doorbell::close() {
  server_->remove(*this);
  mailbox_->unclaim(mailbox_->claimed() - rung_);
  // Its last user ends its thread, which may be this one.
  peer_.progress().post([server = std::move(server_)]() mutable { server.reset(); });
}

Proxy::Turn Doorbell::look() {
  bool moved = false;
  const uint64_t bell = health_.words().bell.load(std::memory_order_acquire);
  if (bell != rung_ && !health_.hasFailed()) {
    const uint64_t allowed = allowed_.load(std::memory_order_acquire);
    if (bell > allowed || bell < rung_) {
      abort(Code::kInvalidArgument);
      health_.fail(Status(Code::kInvalidArgument, "the executor stored " + std::to_string(bell) +
                                                      " to the bell of a triggered queue to " +
                                                      peer_.name() + "; " + std::to_string(rung_) +
                                                      " to " + std::to_string(allowed) +
                                                      " were enqueued"));
      peer_.progress().nudge();
      return Proxy::Turn::kIdle;
    }
    ring(bell);
    moved = true;
  }
  if (!mailbox_->pending()) return moved ? Proxy::Turn::kMoved : Proxy::Turn::kIdle;
  moved |= mailbox_->serve();
  // For threads that wait for the count, and for the end of the commit.
  if (!mailbox_->pending()) peer_.progress().nudge();
  return moved ? Proxy::Turn::kMoved : Proxy::Turn::kPending;
}

void Doorbell::ring(uint64_t bell) {
  const MutexLock lock(mutex_);
  if (health_.hasFailed()) return;
  rung_ = bell;
  mailbox_->ringTo(bell);
}

}  // namespace peerlane
