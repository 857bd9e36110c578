// SPDX-License-Identifier: Apache-2.0
//
// RequestCutter: makes requests to a NIC of mailbox entries, one after the other: a put becomes
// WRITEs, a get READs, a word a WRITE that comes with news (which wakes the peer), an addition a
// FETCH_ADD and news after it, a flush a READ after everything. Where the two devices do not place
// writes in order, or the peer asked for that, a word goes as a mail that the peer's agent applies.
// Knows no thread and no mailbox. External synchronization.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "peerlane/core/log_limit.h"
#include "peerlane/transport/verbs/device/bounce_slots.h"
#include "peerlane/transport/verbs/device/control_block.h"
#include "peerlane/transport/verbs/device/memory_keys.h"
#include "peerlane/transport/verbs/device/queue_pair.h"
#include "peerlane/transport/verbs/request/news.h"
#include "peerlane/transport/verbs/request/request_chain.h"
#include "peerlane/transport/verbs/request/request_ledger.h"

namespace peerlane {

// The facts that the two sides of a link agreed on.
struct VerbsAgreement {
  bool ordersWrites = false;
  bool adds = false;
  bool mailsWords = false;      // the peer does so where a grant of this side asks for it
  uint32_t newsToPeer = 0;      // that may be under way
  uint32_t packetBytes = 4096;  // of payload, at most
  uint64_t control = 0;         // the peer's block
  uint32_t controlKey = 0;
};

class RequestCutter {
 public:
  enum class Cut : uint8_t {
    kMade,     // a request, and there is more of the work
    kWhole,    // there is no more
    kStalled,  // there is no room for a request, or for its bytes, or the peer has to take news
  };

  // All outlive it.
  RequestCutter(MemoryKeys& keys, BounceSlots& bounces, const ControlBlock& control,
                const VerbsAgreement& agreed, const QueuePair::Limits& limits);

  // Adds a request for `work` to the chain, where there is one to make.
  Cut cut(AgentWork& work, RequestChain& chain, RequestLedger& ledger);
  // Adds one that tells the peer how many of its news were taken; as news of its own, which wakes
  // the peer, where it asked. False: there is no room for it now.
  bool tellTaken(uint64_t taken, bool isAsked, RequestChain& chain, RequestLedger& ledger);
  // Tells the peer whether threads of this side poll. That they no longer do is told for certain:
  // the answer comes once it stands in the peer's memory. False: there is no room for it now.
  bool tellPolls(bool polls, RequestChain& chain, RequestLedger& ledger);
  // Threads of the peer poll words by themselves.
  bool peerPolls() const;
  // Adds news that only wakes the peer. False: there is no room for it now.
  bool wake(RequestChain& chain, RequestLedger& ledger);
  // Adds a READ, whose answer says that all writes before it over that pair stand in the peer's
  // memory. Requires: room for it.
  void prove(AgentWork& work, RequestChain& chain, RequestLedger& ledger);
  // A READ may be served before the WRITEs that came before it, but not before those that were
  // acknowledged: the devices place nothing in order.
  bool mayReadsOvertake() const { return !agreed_.ordersWrites; }
  // Of the news of this side, how many the peer has taken, as far as it said so.
  uint64_t taken() const { return credits_.taken(); }
  // A slot was given back here since the last call, and another link waits for one.
  bool takeFreed() { return std::exchange(hasFreed_, false); }
  // The pairs were made anew and the control block cleared: no news is under way.
  void startAgain();

 private:
  static constexpr uint64_t kMostBytes = 1 << 20;  // of one request

  Cut cutCopy(AgentWork& work, RequestChain& chain, RequestLedger& ledger);
  bool gather(AgentWork& work, RequestChain& chain);
  Cut bounce(AgentWork& work, RequestChain& chain, RequestLedger& ledger);
  Cut endGone(AgentWork& work, RequestChain& chain);
  Cut cutWord(AgentWork& work, RequestChain& chain, RequestLedger& ledger);
  Cut cutAddition(AgentWork& work, RequestChain& chain, RequestLedger& ledger);
  Cut cutFlush(AgentWork& work, RequestChain& chain, RequestLedger& ledger);
  void addMail(AgentWork& work, RequestChain& chain, RequestLedger& ledger);
  void addNews(RequestChain& chain, News news);
  void addWake(RequestChain& chain, RequestLedger& ledger, AgentWork* work);
  ibv_send_wr& addToControl(RequestChain& chain, ibv_wr_opcode opcode, uint64_t offset);
  const MemoryKeys::Key* keyOf(const std::byte* at, uint64_t bytes);

  MemoryKeys& keys_;
  BounceSlots& bounces_;
  const ControlBlock& control_;
  const VerbsAgreement agreed_;
  const QueuePair::Limits limits_;
  NewsCredits credits_;
  std::optional<MemoryKeys::Key> key_;  // the last one
  uint64_t keysEnded_ = 0;              // when it was found
  Status noKey_;                        // why there was none
  bool hasFreed_ = false;
  LogLimit lines_;
};

}  // namespace peerlane
