// SPDX-License-Identifier: Apache-2.0
//
// LaneEnd: one end of a lane, the messages in one direction between this rank and another: the
// posted messages in their order, and the right to run them. The two kinds of ends are LaneSender
// and LaneReceiver. LaneEnvironment: the state that both directions of a pair of ranks share.
//
// Posts come from any thread and never wait: they queue. One thread at a time runs a lane (the
// poster, a waiting thread, or a turn of the progress engine). A thread that finds the lane busy
// adds to `work_`; the running thread looks at that before it leaves, so no wake-up is lost. Up to
// LaneArea::kSlots messages are under way at once.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "peerlane/channel/message/host/message_batch.h"
#include "peerlane/channel/message/host/message_format.h"
#include "peerlane/core/mutex.h"
#include "peerlane/program/model/binding.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {

// Immutable once the pair has met.
struct LaneEnvironment {
  std::shared_ptr<PeerCore> peer;
  uint32_t rank = 0;                   // the other one
  std::shared_ptr<RegionRecord> area;  // this side's, written by the peer
  std::shared_ptr<ImportedRegion> peerArea;
  uint32_t eagerBytes = 0;      // room in this side's inbox
  uint32_t peerEagerBytes = 0;  // and in the peer's
  uint64_t ringBytes = 0;       // of a ring of chunks, once one is needed
  bool strict = false;
  std::function<void(const LaneNote&)> sendNote;  // over the control connection

  bool peerAreaMapped() const { return peerArea->memory.mapped != nullptr; }
  BoundTarget local(uint64_t offset, uint64_t bytes) const;
  BoundTarget remote(uint64_t offset, uint64_t bytes) const;
};

// How a message ends that has lost its memory: its program unmapped or protected it, or some
// program cut the file behind it.
Status memoryGone(const std::string& message);

class LaneEnd {
 public:
  static constexpr uint32_t kSlots = LaneArea::kSlots;
  // The most bytes that one step copies before it looks for cancellation and lets others have their
  // turn.
  static constexpr uint64_t kSliceBytes = uint64_t{8} << 20;

  // One item of a batch, in its turn.
  struct Posted {
    std::shared_ptr<MessageBatch> batch;  // null: already ended (cancelled)
    size_t index = 0;
    Part part{};
    uint8_t ordinal = 0;  // as in Envelope
  };

  explicit LaneEnd(const LaneEnvironment& env) : env_(env) {}
  virtual ~LaneEnd() = default;
  LaneEnd(const LaneEnd&) = delete;
  LaneEnd& operator=(const LaneEnd&) = delete;

  // --- Any thread ---
  // Takes `count` items of the batch, from `first` on; they end by MessageBatch::itemEnded, also
  // when the lane has failed.
  void post(const std::shared_ptr<MessageBatch>& batch, size_t first, size_t count);
  // Runs the lane if no other thread does. True when something moved.
  bool advanceIfFree(uint64_t budgetBytes);
  // The same; a thread that already runs the lane looks again before it stops. For turns.
  bool advance(uint64_t budgetBytes);
  // Something other than a word has changed: this thread, or the one that runs the lane, looks at
  // it.
  void stir() { advance(kSliceBytes); }
  void stirCancelled() {
    cancelled_.store(true, std::memory_order_release);
    stir();
  }
  void take(const LaneNote& note);
  // Ends everything posted and yet to be posted. The first reason stays.
  void fail(const Status& why);

  // OK while messages can be posted.
  Status health() const;
  bool failing() const { return failing_.load(std::memory_order_acquire); }
  // There may be something to run.
  bool busy() const {
    return !over() &&
           (open_.load(std::memory_order_acquire) != 0 || failing_.load(std::memory_order_acquire));
  }
  // Failed, and everything has ended: nothing of this end touches the peer's memory.
  bool over() const { return over_.load(std::memory_order_acquire); }

  // For dumps: one line, empty when idle.
  std::string describe();

 protected:
  // One look at everything. Runner only, as all below.
  virtual bool step(uint64_t budgetBytes) = 0;
  virtual void handle(const LaneNote& note) = 0;
  // Ends what is under way with failure(); true when nothing is any more.
  virtual bool abandon() = 0;
  virtual std::string describeWindow() const = 0;

  // The next item of the queue; false when there is none.
  bool next(Posted& item);
  bool queued() const { return !queue_.empty(); }
  const Status& failure() const { return reason_; }
  // A failure found while running.
  void breakLane(const Status& why);
  // Something must be done soon that no word of the peer's will announce.
  void setHungry() { hungry_ = true; }
  // One more or one less thing to run, besides posted items.
  void opened(uint32_t count = 1) { open_.fetch_add(count, std::memory_order_acq_rel); }
  void closed(uint32_t count = 1) { open_.fetch_sub(count, std::memory_order_acq_rel); }

  const LaneEnvironment& env_;

 private:
  struct Posting {
    std::shared_ptr<MessageBatch> batch;
    size_t next = 0;
    size_t end = 0;
    bool isCancelled = false;  // what is left of it has ended
  };
  bool run(uint64_t budgetBytes);
  bool runOnce(uint64_t budgetBytes);
  void takeIncoming();
  void dropCancelled();
  void endQueue();
  bool enterArea();
  void leaveArea();

  // The exclusive right to run; with work_ it keeps the rule at the top of this file. All accesses
  // to both are sequentially consistent.
  std::atomic<bool> running_{false};
  std::atomic<uint64_t> work_{0};  // marks left for the runner
  std::atomic<uint32_t> open_{0};  // items posted and not ended, and other things to run
  std::atomic<bool> failing_{false};
  std::atomic<bool> over_{false};
  std::atomic<bool> hasIncoming_{false};
  std::atomic<bool> cancelled_{false};  // some batch was; release, acquired by the runner

  mutable Mutex mutex_;
  std::vector<Posting> incoming_ PEERLANE_GUARDED_BY(mutex_);
  std::vector<LaneNote> notes_ PEERLANE_GUARDED_BY(mutex_);
  Status failure_ PEERLANE_GUARDED_BY(mutex_);

  // Runner only.
  std::deque<Posting> queue_;
  Status reason_;  // a copy of failure_, once it is set
  bool inArea_ = false;
  uint8_t ordinal_ = 0;    // of the next message in the queue
  bool draining_ = false;  // abandon() was asked, and something was under way
  bool hungry_ = false;
};

}  // namespace peerlane
