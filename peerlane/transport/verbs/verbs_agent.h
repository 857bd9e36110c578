// SPDX-License-Identifier: Apache-2.0
//
// VerbsAgent: performs this side's mailbox entries by requests to a NIC over one queue pair, and
// takes the news of the peer. RequestCutter says which entry becomes which requests.
//
// Order: requests of one pair are performed in the order in which they are posted; one after a READ
// of the same mailbox carries a fence, because a device may otherwise go on before the answer is
// there. Where the devices do not place writes in order, an entry other than a word waits for the
// one before it. A put ends when its last request is acknowledged.
//
// Threads: any. The posting path takes no lock of the system's and asks for no memory. Mailboxes
// are finished under no right of the agent's.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "peerlane/core/mutex.h"
#include "peerlane/memory/region_directory.h"
#include "peerlane/program/model/mailbox.h"
#include "peerlane/transport/verbs/control_block.h"
#include "peerlane/transport/verbs/queue_pair.h"
#include "peerlane/transport/verbs/request_cutter.h"
#include "peerlane/transport/verbs/request_ledger.h"
#include "peerlane/transport/verbs/shared_queues.h"
#include "peerlane/transport/verbs/turn_right.h"
#include "peerlane/transport/verbs/word_mail.h"
#include "peerlane/transport/verbs/work_list.h"

namespace peerlane {

class VerbsAgent final : public Agent, public PairOwner {
 public:
  // All outlive it.
  struct Surroundings {
    SharedQueues& queues;
    MemoryKeys& keys;
    BounceSlots& bounces;
    RegionDirectory& regions;
    std::function<void()> workArrived;
  };

  // `name` is for log lines. `pair` is joined to the peer's. `receives`: news of the peer that may
  // be under way, reserved with the queues.
  VerbsAgent(std::string name, const Surroundings& around, std::unique_ptr<QueuePair> pair,
             ControlBlock control, uint32_t receives, const VerbsAgreement& agreed);
  // Closes.
  ~VerbsAgent() override;

  Served serve(AgentWork& work) override;
  void abandon(AgentWork& work, Code code) override;
  void handedOut() override;

  // Posts what waited for room. True when something moved.
  bool advance();
  // The first failure; sticky.
  Status health() const;
  // Ends all works taken with `code`, once each; from then on the device touches none of their
  // memory. The pair stays until the end of the agent where nothing is under way, so that requests
  // of the peer that it has not heard of yet are answered. Idempotent.
  void close(Code code);
  // Requests of this side have no answer yet.
  bool isUnderWay() const;

  void ended(const ibv_wc& completion) override;
  void arrived(uint32_t number) override;
  bool settle(bool isPolled) override;
  void fail(const Status& why) override;

 private:
  using Request = RequestLedger::Request;

  void pump() PEERLANE_REQUIRES(right_);
  void tellPeer(RequestChain& chain) PEERLANE_REQUIRES(right_);
  void tellPolls(RequestChain& chain) PEERLANE_REQUIRES(right_);
  void makeWhole(AgentWork& work, RequestChain& chain) PEERLANE_REQUIRES(right_);
  void post(RequestChain& chain) PEERLANE_REQUIRES(right_);
  void release(const Request& request, bool isGood) PEERLANE_REQUIRES(right_);
  void end(const Status& why, const AgentWork* guilty, bool mayAnswer = false)
      PEERLANE_REQUIRES(right_);
  bool pumpAndTell();

  const std::string name_;
  const Surroundings around_;
  const std::unique_ptr<QueuePair> pair_;
  const ControlBlock control_;
  const uint32_t receives_;
  const VerbsAgreement agreed_;

  mutable TurnRight right_;
  WorkList waiting_ PEERLANE_GUARDED_BY(right_);   // not posted whole
  WorkList finished_ PEERLANE_GUARDED_BY(right_);  // with their codes, to be told
  RequestCutter cutter_ PEERLANE_GUARDED_BY(right_);
  RequestLedger ledger_ PEERLANE_GUARDED_BY(right_);
  WordMail mail_ PEERLANE_GUARDED_BY(right_);
  uint64_t taken_ PEERLANE_GUARDED_BY(right_) = 0;  // news of the peer
  uint64_t told_ PEERLANE_GUARDED_BY(right_) = 0;   // of that count to the peer
  bool isAsked_ PEERLANE_GUARDED_BY(right_) = false;
  bool isPolled_ PEERLANE_GUARDED_BY(right_) = false;    // by threads of this side
  bool isBelieved_ PEERLANE_GUARDED_BY(right_) = false;  // the peer thinks so
  uint32_t newsPolled_ PEERLANE_GUARDED_BY(right_) = 0;  // that came while they polled
  bool owesWake_ PEERLANE_GUARDED_BY(right_) = false;    // a quiet word may have met a sleeper
  bool isOver_ PEERLANE_GUARDED_BY(right_) = false;
  // Its end, or a slot for which another link waits, that nobody was told of.
  bool hasNews_ PEERLANE_GUARDED_BY(right_) = false;
  std::atomic<bool> isWaiting_{false};  // a hint: works wait for room
  mutable Mutex failureLock_;           // taken after right_
  Status failure_ PEERLANE_GUARDED_BY(failureLock_);
};

}  // namespace peerlane
