// SPDX-License-Identifier: Apache-2.0
//
// FrameAgent: performs this side's mailbox entries by frames over a byte pipe, and performs the
// peer's entries. Links without a faster way are made of it (tcp, the ring of shm). Not a link: it
// exports and imports nothing.
//
// Order: entries of one mailbox take effect in order; puts, stores, adds and flushes take effect in
// the order in which they began, over the whole agent. A put, store, add or flush ends when the
// peer has answered that it is applied and visible; a get when its bytes have arrived. A get that
// is abandoned ends at the next poll() at the latest, whatever the peer does: what still comes of
// it is dropped. Any other work that began ends by its answer or with the link, also when it is
// abandoned (the pipe may be in the middle of its memory). After an abandon the agent still sends
// the frames that were already cut (FrameSender::kWindowBytes), and the peer still sends data of a
// get until it has received the cancellation.
//
// Threads: any. A poll() does nothing while another thread is in poll(); close() waits for the
// poll() in progress.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "peerlane/core/mutex.h"
#include "peerlane/memory/region_directory.h"
#include "peerlane/program/model/mailbox.h"
#include "peerlane/transport/frame_pipe.h"
#include "peerlane/transport/frame_receiver.h"
#include "peerlane/transport/frame_sender.h"

namespace peerlane {

class FrameAgent final : public Agent {
 public:
  // `name` is for log lines ("tcp link to 10.0.0.2:4711"). `workArrived` may be empty; the thread
  // that calls poll(), serve() or close() calls it, under no lock, where poll() or serve() must be
  // called once more. A turn looks for data that its own poll() has brought. `regions`
  // outlives the agent. `peerKnows`: as LinkSurroundings.
  FrameAgent(std::string name, std::unique_ptr<FramePipe> pipe, RegionDirectory& regions,
             std::function<void()> workArrived, FrameFeatures peerKnows = {});
  // Requires: closed, or nothing in flight.
  ~FrameAgent() override;
  FrameAgent(const FrameAgent&) = delete;
  FrameAgent& operator=(const FrameAgent&) = delete;

  // kAgain: the agent took no part of the work. kDone only with the code of an ended link.
  Served serve(AgentWork& work) override;
  void abandon(AgentWork& work, Code code) override;

  // Reads, performs and writes for a bounded time. True when bytes moved. An error of the pipe or a
  // violation by the peer is logged once and ends all works taken.
  bool poll() { return move() != 0; }
  // The same; how many bytes moved.
  size_t move();
  // A poll() would certainly do nothing now.
  bool isQuiet();
  // No work is in its hands; a hint.
  bool isIdle() const { return isIdle_.load(std::memory_order_relaxed); }
  // Sends what waits for the next entry or message, because none comes soon.
  void sendOwed();

  Status health() const;

  // Ends all works taken with `code`, once each, and the pipe. Idempotent.
  void close(Code code);

 private:
  // Per call and direction, so that the other links and mailboxes of a turn do not wait long.
  static constexpr size_t kTurnBytes = 1024 * 1024;

  Status pump(FrameEffects& effects, size_t& moved) PEERLANE_REQUIRES(lock_);
  bool mayOwe(const FrameEffects& effects) const PEERLANE_REQUIRES(lock_);
  bool mustGoOn() const PEERLANE_REQUIRES(lock_);
  void noteRest(const Status& failure) PEERLANE_REQUIRES(lock_);
  void setOwing(bool owes) PEERLANE_REQUIRES(lock_);
  void payUp(FrameEffects& effects) PEERLANE_REQUIRES(lock_);
  Served serveLocked(AgentWork& work, FrameEffects& effects) PEERLANE_REQUIRES(lock_);
  Status pollLocked(FrameEffects& effects, size_t& moved) PEERLANE_REQUIRES(pollLock_);
  void end(const Status& why, FrameEffects& effects) PEERLANE_REQUIRES(pollLock_);
  void settle(FrameEffects& effects);

  const std::string name_;
  const std::unique_ptr<FramePipe> pipe_;
  RegionDirectory& regions_;
  const std::function<void()> workArrived_;

  Mutex pollLock_;  // taken before lock_
  FrameReceiver receiver_ PEERLANE_GUARDED_BY(pollLock_);

  mutable Mutex lock_;
  FrameSender sender_ PEERLANE_GUARDED_BY(lock_);
  Status failure_ PEERLANE_GUARDED_BY(lock_);  // the first error, sticky
  bool ended_ PEERLANE_GUARDED_BY(lock_) = false;
  // A work was sent away because the pipe was full.
  bool pipeRefused_ PEERLANE_GUARDED_BY(lock_) = false;
  // Acknowledgements, or entries that may linger, wait for the next message to the peer.
  bool owes_ PEERLANE_GUARDED_BY(lock_) = false;
  // The state after the last poll, if no call has come since.
  enum class Rest : uint8_t { kUnknown, kNothing, kUntilRoom };
  Rest rest_ PEERLANE_GUARDED_BY(lock_) = Rest::kUnknown;
  std::atomic<bool> isIdle_{true};
};

}  // namespace peerlane
