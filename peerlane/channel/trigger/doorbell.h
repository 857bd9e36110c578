// SPDX-License-Identifier: Apache-2.0
//
// Doorbell: the side of a doorbell queue where work is done: the mailbox with the entries that were
// prepared, and the looks of the context's server, which rings them up to the number that the
// executor stored. The poster claims entries; the server's thread rings and serves; other threads
// of the context serve as they do all mailboxes. A mapped queue of a device that awaits arrivals
// has the server's looks, too, and no mailbox.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>

#include "peerlane/channel/trigger/doorbell_server.h"
#include "peerlane/channel/trigger/trigger_health.h"
#include "peerlane/core/mutex.h"
#include "peerlane/program/model/mailbox.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {

class Doorbell final : public DoorbellQueue {
 public:
  // `peer` and `health` outlive it.
  Doorbell(PeerCore& peer, TriggerHealth& health) : peer_(peer), health_(health) {}
  ~Doorbell();

  // From now on the server looks at it. The poster's; once, or again.
  Status join();
  // Takes a mailbox and joins the server. Once; before it no other function may be called, but
  // isOpen(), join(), expect() and close().
  Status open(uint32_t operations);
  bool isOpen() const { return isOpen_.load(std::memory_order_acquire); }
  // Leaves the server, if it joined. What was not rung is taken back; what a link has in its hands
  // ends as any. The poster's.
  void close();

  // The poster's.
  Mailbox& mailbox() { return *mailbox_; }
  // The executor may store numbers up to `last` from now on. Before it does.
  void allow(uint64_t last) { allowed_.store(last, std::memory_order_release); }
  // Of a queue of a device, once it has joined: the server tells it in TriggerWords::arrived when
  // these have come, one after the other, behind those of earlier calls. The executor's.
  void expect(std::span<const TriggerArrival> arrivals);
  // An executor is about to store the bell.
  void wake() {
    if (server_ != nullptr) server_->wake();
  }
  // This thread has stored it.
  void prod() {
    if (server_ != nullptr) server_->prod();
  }
  // The queue fails: nothing more is begun. Before that is told.
  void abort(Code code) { mailbox_->abort(code); }
  // What was rung has ended. Where the queue has failed nothing is rung afterwards, so the memory
  // of its entries may go.
  bool isDrained() const {
    const MutexLock lock(mutex_);
    return !mailbox_->pending();
  }

  Proxy::Turn look() override;
  uint64_t allowed() const { return allowed_.load(std::memory_order_relaxed); }

 private:
  void ring(uint64_t bell);
  bool lookAtBell();
  bool tellArrivals();

  PeerCore& peer_;
  TriggerHealth& health_;
  Mailbox* mailbox_ = nullptr;  // constant from isOpen() until close(), as the next
  std::shared_ptr<DoorbellServer> server_;
  std::atomic<bool> isOpen_{false};
  std::atomic<uint64_t> allowed_{0};  // executor release -> server acquire
  uint64_t rung_ = 0;                 // the server's
  mutable Mutex mutex_;               // of rings
  std::atomic<uint32_t> expecting_{0};
  std::deque<TriggerArrival> expected_ PEERLANE_GUARDED_BY(mutex_);
};

}  // namespace peerlane
