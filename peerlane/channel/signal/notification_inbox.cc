// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/signal/notification_inbox.h"

#include <cstring>

#include "peerlane/channel/blocks/owned_notify.h"
#include "peerlane/channel/protocol/notify_protocol.h"
#include "peerlane/core/log.h"
#include "peerlane/program/words/word.h"

namespace peerlane {
namespace {

// In the receiver's program: wait, copy, credit.
constexpr size_t kCreditOp = 2;

}  // namespace

std::shared_ptr<NotificationInbox> NotificationInbox::of(PeerCore& peer) {
  return peer.attachments().notificationInbox.getOr(
      [&] { return std::make_shared<NotificationInbox>(peer); });
}

NotificationInbox::NotificationInbox(PeerCore& peer)
    : peer_(peer), counts_(peer.slabs().inboxCounts()), mutex_(peer.progress()) {
  static_assert(slab::kNotifyMaxMessageBytes == kNotifyMaxMessageBytes);
  static_assert(slab::kInboxStrideBytes >= kNotifyMessageOffset + kNotifyMaxMessageBytes);
  static_assert(slab::kWordStrideBytes == kNotifyCreditStrideBytes);
  buffer_.resize(kNotifyHeaderBytes + kNotifyMaxMessageBytes);
  const TurnMutexLock lock(mutex_);
  prepare();
}

// For the link that carries words now.
void NotificationInbox::prepare() {
  const RemoteMemory& memory = peer_.slabs().peersMemory();
  bound_ = &memory;
  Binding binding;
  binding.targets.push_back({.address = peer_.slab() + slab::kInboxOffset,
                             .bytes = uint64_t{slab::kNotifySlots} * slab::kInboxStrideBytes});
  binding.targets.push_back({});
  binding.targets.push_back(
      {.address = memory.mapped != nullptr ? memory.mapped + slab::kCreditsOffset : nullptr,
       .bytes = uint64_t{slab::kNotifySlots} * slab::kWordStrideBytes,
       .remote = &memory,
       .remoteOffset = slab::kCreditsOffset,
       .waker = memory.mapped != nullptr ? &peer_.links().of(memory).traits().waker : nullptr});
  if (memory.mapped == nullptr && mailbox_ == nullptr) mailbox_ = peer_.mailboxes().borrow();
  if (memory.mapped == nullptr) binding.mailbox = mailbox_;
  const NotifyShape shape{slab::kNotifySlots, slab::kInboxStrideBytes, kNotifyMaxMessageBytes};
  broken_ = program_.prepare(notifyReceiver(shape), std::move(binding));
  PEERLANE_CHECK(broken_.isOk());
}

// The slot is complete: its header says how much to take.
Status NotificationInbox::bind(TargetId /*target*/, BoundTarget& out) {
  const std::byte* header = peer_.slab() + slab::kInboxOffset +
                            credited_ % slab::kNotifySlots * slab::kInboxStrideBytes +
                            kNotifyHeaderOffset;
  uint32_t fields[2];
  std::memcpy(fields, header, sizeof(fields));
  void_ = fields[0] == OwnedNotify::kVoid;
  if (!void_ && fields[0] > kNotifyMaxMessageBytes) {
    if (lines_.allows())
      PEERLANE_LOG_WARN("peer {}: a notification claims {} bytes; at most {}: dropped{}",
                        peer_.number(), fields[0], kNotifyMaxMessageBytes, lines_.leftOut());
    void_ = true;
  }
  current_.tag = fields[1];
  messageBytes_ = void_ ? 0 : fields[0];
  out.address = buffer_.data();
  out.bytes = kNotifyHeaderBytes + messageBytes_;
  return Status::ok();
}

void NotificationInbox::deliver() {
  if (!void_) {
    const std::ptrdiff_t end = kNotifyHeaderBytes + static_cast<std::ptrdiff_t>(messageBytes_);
    current_.message.assign(buffer_.begin() + kNotifyHeaderBytes, buffer_.begin() + end);
    waiting_.push_back(std::move(current_));
    counts_.waiting.store(waiting_.size(), std::memory_order_release);
  }
  ++cursor_;
  counts_.passed.store(cursor_, std::memory_order_release);
}

// Whether the peer will not come back. Reads the code, not the state, because callers have seen the
// code when they ask here once more.
bool NotificationInbox::peerGone() const {
  const Code code = peer_.failureCode();
  return code != Code::kOk && code != Code::kPeerSilent;
}

// A message is here once it is copied: its credit may still be on its way, and one that does not
// arrive is the peer's loss.
cpu::Step NotificationInbox::advanceRun(uint64_t budgetBytes) {
  const cpu::Step step = run_.advance(budgetBytes);
  if (!delivered_ && run_.opIndex() >= kCreditOp) {
    deliver();
    delivered_ = true;
  }
  return step;
}

// The connection is over: the peer's notifications of before are still in our slab, and the peer
// needs no credits any more. A link that is just being closed may still hold the last one.
bool NotificationInbox::takeRest() {
  const uint64_t before = cursor_;
  if (running_) {
    run_.cancel(Code::kPeerLost);
    running_ = advanceRun(0) != cpu::Step::kEnded;
    PEERLANE_CHECK(!running_ || delivered_);
  }
  while (waiting_.size() < kMaxWaiting) {
    const std::byte* slot =
        peer_.slab() + slab::kInboxOffset + cursor_ % slab::kNotifySlots * slab::kInboxStrideBytes;
    if (loadWord(slot, Width::k64) != cursor_ + 1) break;
    credited_ = cursor_;
    BoundTarget target;
    (void)bind(kNotifyReceiverMessage, target);
    std::memcpy(target.address, slot + kNotifyHeaderOffset, target.bytes);
    deliver();
  }
  return cursor_ != before;
}

bool NotificationInbox::takeLocked() {
  // Credits go into the peer's slab, which is there only while its gate is open.
  UseGate& slabGate = peer_.peerSlab()->gate;
  if (peerGone() || !slabGate.enter()) return takeRest();
  const uint64_t before = cursor_;
  while (waiting_.size() < kMaxWaiting) {
    if (!running_) {
      if (bound_ != &peer_.slabs().peersMemory()) prepare();
      run_.start(program_, {&credited_, 1}, {}, this);
      running_ = true;
      // Only the credit is given again where it went over a link that failed.
      delivered_ = credited_ != cursor_;
    }
    if (advanceRun(UINT64_MAX) != cpu::Step::kEnded) break;
    running_ = false;
    if (!delivered_ || run_.code() != Code::kOk) break;
    credited_ = cursor_;
  }
  slabGate.leave();
  return cursor_ != before;
}

// A silent peer may be heard again, so the descriptor may also stop being readable.
void NotificationInbox::updateReadiness() {
  readiness_.set(!waiting_.empty() || peer_.failureCode() != Code::kOk);
}

Task::Turn NotificationInbox::turn() {
  // Once the peer is gone no other turn may follow.
  if (peer_.failureCode() != Code::kOk)
    mutex_.lock();
  else if (!mutex_.tryLock())
    return Turn::kIdle;
  const bool moved = takeLocked();
  if (moved || peer_.failureCode() != Code::kOk) updateReadiness();
  mutex_.unlock();
  return moved ? Turn::kMoved : Turn::kIdle;
}

// `isUntold`: this call took more than the one that it hands out, and waiting threads do not know.
bool NotificationInbox::popLocked(Notification& notification, bool& isUntold) {
  const bool moved = waiting_.empty() && takeLocked();
  if (waiting_.empty()) {
    updateReadiness();
    return false;
  }
  isUntold = moved && waiting_.size() > 1;
  // The next ones may lie in the slab for want of room, and nobody would look there again.
  if (waiting_.size() == kMaxWaiting) mutex_.askForTurn();
  notification = std::move(waiting_.front());
  waiting_.pop_front();
  counts_.waiting.store(waiting_.size(), std::memory_order_release);
  if (moved || waiting_.empty()) updateReadiness();
  return true;
}

bool NotificationInbox::pop(Notification& notification) {
  bool isUntold = false;
  {
    const TurnMutexLock lock(mutex_);
    if (!popLocked(notification, isUntold)) return false;
  }
  // Under no lock: they look under locks of their own.
  if (isUntold) peer_.progress().notifyWaiters();
  return true;
}

Result<int> NotificationInbox::fd() {
  int fd = -1;
  {
    const TurnMutexLock lock(mutex_);
    PEERLANE_ASSIGN(fd, readiness_.fd());
    takeLocked();
    updateReadiness();
  }
  peer_.progress().notifyWaiters();  // as in pop()
  return fd;
}

namespace {

Status checkPeer(const Peer& peer) {
  if (!peer)
    return Status(Code::kInvalidArgument,
                  "an empty Peer; take one from Context::connect or accept");
  if (peer.core()->forked()) return peer.core()->usable();
  return Status::ok();
}

}  // namespace

Result<Notification> pollNotification(const Peer& peer) {
  PEERLANE_RETURN_IF_ERROR(checkPeer(peer));
  Notification notification;
  // The end is looked at before the inbox: it counts only once all that came before it was taken.
  const Status ended = peer.core()->failure();
  if (NotificationInbox::of(*peer.core())->pop(notification)) return notification;
  PEERLANE_RETURN_IF_ERROR(ended);
  return Status(Code::kTryAgain, "no notification waits");
}

Result<Notification> waitNotification(const Peer& peer, std::chrono::nanoseconds timeout) {
  PEERLANE_RETURN_IF_ERROR(checkPeer(peer));
  auto inbox = NotificationInbox::of(*peer.core());
  const auto deadline = Progress::deadlineIn(timeout);
  Notification notification;
  for (;;) {
    const Status ended = peer.core()->failure();  // before the look, as above
    if (inbox->pop(notification)) return notification;
    PEERLANE_RETURN_IF_ERROR(ended);
    const auto ready = [&] { return inbox->has() || peer.core()->failureCode() != Code::kOk; };
    const auto words = [&] { return "a notification of " + peer.core()->name(); };
    PEERLANE_RETURN_IF_ERROR(peer.core()->progress().wait(ready, deadline, words));
  }
}

Result<int> notificationFd(const Peer& peer) {
  PEERLANE_RETURN_IF_ERROR(checkPeer(peer));
  return NotificationInbox::of(*peer.core())->fd();
}

}  // namespace peerlane
