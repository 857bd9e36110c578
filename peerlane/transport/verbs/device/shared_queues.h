// SPDX-License-Identifier: Apache-2.0
//
// SharedQueues: what all links of a context over one device have in common, so that a peer costs a
// queue pair and little else: the queue of completions and its channel, the receives that news of
// peers take up, and the events of the device. It hands each completion to the owner of its pair.
//
// Sleeping: the device wakes this side only after the queue was armed. A turn that finds no thread
// polling (the bell's word) arms it and looks once more, because every thread that stops polling
// takes a turn before it sleeps (bell.h).
//
// Threads: any; two never hand out completions at once.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "peerlane/core/status.h"
#include "peerlane/os/event_loop.h"
#include "peerlane/os/readiness_set.h"
#include "peerlane/program/model/bell.h"
#include "peerlane/transport/verbs/device/protection_domain.h"
#include "peerlane/transport/verbs/device/turn_right.h"

namespace peerlane {

// One end of a connection of one or more pairs. Called by the thread that hands out completions.
class PairOwner {
 public:
  virtual ~PairOwner() = default;
  // A request of this side has ended, and so have all before it.
  virtual void ended(const ibv_wc& completion) = 0;
  // News of the peer came, after everything that the peer had posted before.
  virtual void arrived(uint32_t news) = 0;
  // After the last of the above for now: receives that were taken up are there again. `isPolled`:
  // threads of this side poll. True: the peer believes so, and must be told when they stop.
  virtual bool settle(bool isPolled) = 0;
  // The device has given up one of its pairs. `isOfPeer`: it refused a request of the peer, which
  // the peer's device tells the peer.
  virtual void breakOff(const Status& why, bool isOfPeer) = 0;
  // The device has failed.
  virtual void fail(const Status& why) = 0;
};

class SharedQueues {
 public:
  // In requests of this side; those of receives have this bit.
  static constexpr uint64_t kReceiveBit = uint64_t{1} << 63;

  // `loop`, `readiness` and `bell` outlive it. Progress thread. Errors: kUnavailable, kSystem.
  static Result<std::unique_ptr<SharedQueues>> create(
      std::shared_ptr<const ProtectionDomain> domain, EventLoop& loop, ReadinessSet& readiness,
      const Bell& bell);
  // Requires: no pair is left.
  ~SharedQueues();
  SharedQueues(const SharedQueues&) = delete;
  SharedQueues& operator=(const SharedQueues&) = delete;

  ibv_cq* completions() const { return completions_; }
  ibv_srq* receives() const { return receives_; }

  // Makes room for one more pair of so many requests. Returns how many receives the peer may take
  // up before it has word of any that came: more while few peers are there. Errors: kUnavailable
  // naming the limit of the device, kSystem.
  Result<uint32_t> reserve(uint32_t requests);
  void giveBack(uint32_t requests, uint32_t receives);
  // Makes room for one more pair of the same peer, which takes no news.
  Status reserveMore(uint32_t requests);

  // From now until remove() the owner gets what comes for the pair.
  void add(uint32_t pair, PairOwner& owner);
  void remove(uint32_t pair);

  // Hands out what has come. True when there was any.
  bool poll();
  // Hands out the rest of a pair that was stopped. False: the device did not say in time that it
  // was all. Progress thread.
  bool takeRest(uint32_t pair);

 private:
  static constexpr int kBatch = 32;
  // So that the other links and mailboxes of a turn do not wait long.
  static constexpr int kBatchesPerTurn = 8;

  SharedQueues(std::shared_ptr<const ProtectionDomain> domain, ReadinessSet& readiness,
               const Bell& bell);
  Status makeQueues(EventLoop& loop);
  Status growCompletions(uint32_t wanted) PEERLANE_REQUIRES(right_);
  Status addReceives(uint32_t count) PEERLANE_REQUIRES(right_);
  void watchReceives() PEERLANE_REQUIRES(right_);
  void replaceLost() PEERLANE_REQUIRES(right_);
  bool handOut() PEERLANE_REQUIRES(right_);
  void settle(PairOwner& owner, bool isPolled) PEERLANE_REQUIRES(right_);
  void stopPolling() PEERLANE_REQUIRES(right_);
  void handOut(const ibv_wc& completion) PEERLANE_REQUIRES(right_);
  bool drain() PEERLANE_REQUIRES(right_);
  void takeEvents() PEERLANE_REQUIRES(right_);
  void arm() PEERLANE_REQUIRES(right_);
  void failAll(const Status& why) PEERLANE_REQUIRES(right_);
  void deviceEvents();
  void handle(ibv_event_type type, uint32_t pair);
  bool nobodyPolls() const {
    return !bell_word::isPolling(pollers_->load(std::memory_order_seq_cst));
  }

  const std::shared_ptr<const ProtectionDomain> domain_;
  const verbs::Library& library_;
  ReadinessSet& readiness_;
  const std::atomic<uint64_t>* const pollers_;  // the bell's word
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* completions_ = nullptr;
  ibv_srq* receives_ = nullptr;
  uint32_t mostReceives_ = 0;
  std::shared_ptr<ReadinessSet::Member> member_;
  Watch events_;

  TurnRight right_;
  bool isArmed_ PEERLANE_GUARDED_BY(right_) = false;
  uint32_t reserved_ PEERLANE_GUARDED_BY(right_) = 0;       // completions
  uint32_t promised_ PEERLANE_GUARDED_BY(right_) = 0;       // receives
  uint32_t posted_ PEERLANE_GUARDED_BY(right_) = 0;         // of them
  uint32_t leastReceives_ PEERLANE_GUARDED_BY(right_) = 0;  // fewer are an event of the device
  uint32_t takenUp_ PEERLANE_GUARDED_BY(right_) = 0;        // and not posted again yet
  std::unordered_map<uint32_t, PairOwner*> owners_ PEERLANE_GUARDED_BY(right_);
  std::vector<uint32_t> exhausted_ PEERLANE_GUARDED_BY(right_);   // pairs that take no more
  std::vector<PairOwner*> touched_ PEERLANE_GUARDED_BY(right_);   // since they were last settled
  std::vector<PairOwner*> believed_ PEERLANE_GUARDED_BY(right_);  // their peers believe in polling
};

}  // namespace peerlane
