// SPDX-License-Identifier: Apache-2.0
//
// NotificationInbox: takes the notifications that a peer left in the slab, one after the other, by
// the receiver's program of notify_protocol.h; one per peer. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>

#include "peerlane/channel/signal/notification.h"
#include "peerlane/core/log_limit.h"
#include "peerlane/os/readiness.h"
#include "peerlane/program/cpu/cpu_program.h"
#include "peerlane/progress/turn_mutex.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {

class NotificationInbox final : public Task, private LateBinder {
 public:
  // The most messages that are taken and not yet given to the user. Later ones stay in the slab,
  // and senders wait.
  static constexpr size_t kMaxWaiting = 1024;

  explicit NotificationInbox(PeerCore& peer);
  static std::shared_ptr<NotificationInbox> of(PeerCore& peer);

  Turn turn() override;
  // Takes no lock: callers ask under locks of their own.
  bool has() const { return counts_.waiting.load(std::memory_order_acquire) != 0; }
  // False when there is none.
  bool pop(Notification& notification);
  Result<int> fd();

 private:
  Status bind(TargetId target, BoundTarget& out) override PEERLANE_REQUIRES(mutex_);
  bool takeLocked() PEERLANE_REQUIRES(mutex_);
  bool popLocked(Notification& notification, bool& isUntold) PEERLANE_REQUIRES(mutex_);
  bool takeRest() PEERLANE_REQUIRES(mutex_);
  void prepare() PEERLANE_REQUIRES(mutex_);
  bool peerGone() const;
  cpu::Step advanceRun(uint64_t budgetBytes) PEERLANE_REQUIRES(mutex_);
  void deliver() PEERLANE_REQUIRES(mutex_);
  void updateReadiness() PEERLANE_REQUIRES(mutex_);

  PeerCore& peer_;                 // owns this object
  SlabPair::InboxCounts& counts_;  // of cursor_ and waiting_; written under mutex_
  // A turn only tries it: a thread of the user may lose its core between its look and its unlock.
  TurnMutex mutex_;
  const RemoteMemory* bound_ PEERLANE_GUARDED_BY(mutex_) = nullptr;  // where credits go
  Mailbox* mailbox_ PEERLANE_GUARDED_BY(mutex_) = nullptr;           // kept; null while unused
  cpu::CpuProgram program_ PEERLANE_GUARDED_BY(mutex_);
  cpu::CpuRun run_ PEERLANE_GUARDED_BY(mutex_);
  Status broken_ PEERLANE_GUARDED_BY(mutex_);
  bool running_ PEERLANE_GUARDED_BY(mutex_) = false;
  bool delivered_ PEERLANE_GUARDED_BY(mutex_) = false;  // the message of run_
  bool void_ PEERLANE_GUARDED_BY(mutex_) = false;
  uint64_t messageBytes_ PEERLANE_GUARDED_BY(mutex_) = 0;
  uint64_t cursor_ PEERLANE_GUARDED_BY(mutex_) = 0;    // messages delivered
  uint64_t credited_ PEERLANE_GUARDED_BY(mutex_) = 0;  // of those; the number of run_
  Notification current_ PEERLANE_GUARDED_BY(mutex_);
  std::vector<std::byte> buffer_ PEERLANE_GUARDED_BY(mutex_);
  std::deque<Notification> waiting_ PEERLANE_GUARDED_BY(mutex_);
  Readiness readiness_ PEERLANE_GUARDED_BY(mutex_);
  LogLimit lines_ PEERLANE_GUARDED_BY(mutex_);
};

}  // namespace peerlane
