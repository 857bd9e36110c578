// SPDX-License-Identifier: Apache-2.0
//
// WorkPump: the works of a verbs link from their acceptance to their end, and the pairs over which
// their requests go: it makes requests of those that wait, in their order, as far as there is room,
// and ends each when all of its requests have ended. A work that has to wait for the peer, or for a
// slot, holds back its own mailbox alone. Knows no thread and no failure of a pair: its owner does.
// External synchronization.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "peerlane/transport/verbs/device/bounce_slots.h"
#include "peerlane/transport/verbs/device/control_block.h"
#include "peerlane/transport/verbs/device/memory_keys.h"
#include "peerlane/transport/verbs/request/pair_lanes.h"
#include "peerlane/transport/verbs/request/peer_news.h"
#include "peerlane/transport/verbs/request/request_cutter.h"
#include "peerlane/transport/verbs/request/stripe_cutter.h"
#include "peerlane/transport/verbs/request/work_list.h"

namespace peerlane {

class WorkPump {
 public:
  // All outlive it. `receives`: news of the peer that may be under way.
  WorkPump(MemoryKeys& keys, BounceSlots& bounces, RegionDirectory& regions,
           const ControlBlock& control, uint32_t receives, const VerbsAgreement& agreed,
           std::unique_ptr<QueuePair> first);

  PairLanes& lanes() { return lanes_; }
  bool isIdle() const { return lanes_.isIdle(); }  // nothing is under way
  PeerNews& news() { return news_; }

  // How a work goes: among all pairs; as a mail (a word).
  struct Way {
    bool isShared = false;
    bool goesAsMail = false;
  };
  // Before a work is accepted. `before`: the unfinished one before it in its mailbox; else null.
  static void prepare(AgentWork& work, const AgentWork* before, Way way);
  void accept(AgentWork& work) { waiting_.add(work); }
  // No further request is made for it. False: none was to be made.
  bool stop(AgentWork& work);

  // Posts. False: a pair takes no request, failure() says why, and the owner ends all.
  bool pump();
  const Status& failure() const { return failure_; }
  // Something waits for room, for credits or for slots.
  bool isWaiting() const { return !waiting_.isEmpty() || news_.isOwing(); }
  uint32_t posts() const { return posts_; }  // ever

  // All requests of the lane before this one have ended well; and so has this one.
  void endBefore(PairLane& lane, uint64_t request);
  void endUntil(PairLane& lane, uint64_t request);
  // Works for which requests ended well since the last call.
  bool takeProgress() { return std::exchange(hasProgress_, false); }
  // Mails that the peer has applied.
  void endMails();
  // Ends every work, with the code that it gets from `mark`. Requires: the pairs have ended, or
  // nothing is under way.
  void endAll(const std::function<void(AgentWork&)>& mark);

  // --- After the pairs have ended ---
  // Ends works that have failed and would have ended by an answer. One that the peer's device has
  // refused ends with startAgain() or endAll(): the peer's word that it takes the memory back, said
  // before, has come by then.
  void endFailed();
  // The work is one of those that wait for that, and waits no more.
  bool takeRefused(AgentWork& work) { return refused_.remove(work); }
  // Ends one of them at once.
  void forget(AgentWork& work);
  // Decides which works are posted again (Replay), and ends the others. `pair` is the only one.
  // Returns the lanes of before.
  std::vector<std::unique_ptr<PairLane>> startAgain(std::unique_ptr<QueuePair> pair,
                                                    std::optional<uint64_t> taken,
                                                    bool noneExecuted);

  // With their codes, to be told.
  bool hasFinished() const { return !finished_.isEmpty(); }
  WorkList takeFinished() { return std::exchange(finished_, {}); }
  void finish(AgentWork& work) { finished_.add(work); }
  // A slot came back for which another link waits.
  bool takeFreed() {
    const bool isFreed = cutter_.takeFreed();
    return std::exchange(hasFreed_, false) || isFreed;
  }

 private:
  using Request = RequestLedger::Request;

  void pumpWorks(RequestChain& chain);
  RequestCutter::Cut cut(AgentWork& work, RequestChain& chain);
  RequestCutter::Cut prove(AgentWork& work, RequestChain& chain);
  void makeWhole(AgentWork& work, AgentWork* before, RequestChain& chain);
  void post(RequestChain& chain);
  void release(const Request& request, bool isGood);
  void giveSlotBack(const Request& request, bool isGood);
  void bring(const Request& request);
  void drop(AgentWork& work);
  void replay(std::optional<uint64_t> taken, bool noneExecuted);

  BounceSlots& bounces_;
  const VerbsAgreement agreed_;
  WorkList waiting_;   // not posted whole
  WorkList mailed_;    // posted whole; the peer has to apply them
  WorkList refused_;   // with their codes, until the pairs are made anew
  WorkList finished_;  // with their codes
  RequestCutter cutter_;
  StripeCutter stripes_{cutter_};
  PeerNews news_;
  PairLanes lanes_;
  Status failure_;  // of a post; the last thing that happens
  uint32_t posts_ = 0;
  bool hasProgress_ = false;
  bool hasFreed_ = false;
};

}  // namespace peerlane
