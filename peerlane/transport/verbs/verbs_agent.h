// SPDX-License-Identifier: Apache-2.0
//
// VerbsAgent: performs this side's mailbox entries by requests to a NIC over one queue pair: a put
// by WRITEs, a get by READs, a word by a WRITE that comes with news (which wakes the peer), an
// addition by FETCH_ADD and news after it, a flush by a READ after everything. Where the two devices
// do not place writes in order, a word goes as a mail that the peer's agent applies.
//
// Order: requests of one pair are performed in the order in which they are posted; a request after
// a READ of the same mailbox carries a fence, because a device may otherwise go on before the
// answer is there. A put ends when its last request is acknowledged.
//
// Threads: any. The posting path takes no lock of the system's and asks for no memory. Mailboxes
// are finished under no right of the agent's.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "peerlane/core/mutex.h"
#include "peerlane/memory/region_directory.h"
#include "peerlane/program/model/mailbox.h"
#include "peerlane/transport/verbs/bounce_slots.h"
#include "peerlane/transport/verbs/control_block.h"
#include "peerlane/transport/verbs/memory_keys.h"
#include "peerlane/transport/verbs/news.h"
#include "peerlane/transport/verbs/queue_pair.h"
#include "peerlane/transport/verbs/request_chain.h"
#include "peerlane/transport/verbs/shared_queues.h"
#include "peerlane/transport/verbs/turn_right.h"
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
  // What the two sides agreed on.
  struct Agreement {
    bool ordersWrites = false;
    bool adds = false;
    uint32_t newsToPeer = 0;  // that may be under way
    uint64_t control = 0;     // the peer's block
    uint32_t controlKey = 0;
  };

  // `pair` is joined to the peer's. `receives`: news of the peer that may be under way.
  VerbsAgent(std::string name, const Surroundings& around, std::unique_ptr<QueuePair> pair,
             ControlBlock control, uint32_t receives, const Agreement& agreed);
  // Requires: nothing is in flight (close()).
  ~VerbsAgent() override;

  Served serve(AgentWork& work) override;
  void handedOut() override;
  void abandon(AgentWork& work, Code code) override;

  // Posts what waited for room. True when something moved.
  bool advance();
  Status health() const;
  // Ends all works taken with `code`, once each: then the device touches none of their memory.
  void close(Code code);

  void ended(const ibv_wc& completion) override;
  void arrived(uint32_t news) override;
  void settle() override;
  void fail(const Status& why) override { end(why, nullptr, /*isLoud=*/true); }

 private:
  // One that is under way.
  struct Request {
    AgentWork* work = nullptr;
    std::byte* to = nullptr;  // of a get through a slot: where its bytes belong
    uint32_t bytes = 0;
    uint32_t slot = BounceSlots::kNone;
  };
  enum class Cut : uint8_t { kMade, kWhole, kStalled };

  static constexpr uint32_t kMostUnsignalled = 32;
  static constexpr uint64_t kMostBytes = 1 << 20;  // of one request

  Code refusalOf(const MailboxEntry& entry) const;
  void pump() PEERLANE_REQUIRES(right_);
  void payCredits(RequestChain& chain) PEERLANE_REQUIRES(right_);
  bool hasRoom(const RequestChain& chain, uint32_t requests) const PEERLANE_REQUIRES(right_);
  Cut cut(AgentWork& work, RequestChain& chain) PEERLANE_REQUIRES(right_);
  Cut cutCopy(AgentWork& work, RequestChain& chain) PEERLANE_REQUIRES(right_);
  bool gather(AgentWork& work, RequestChain& chain) PEERLANE_REQUIRES(right_);
  Cut bounce(AgentWork& work, RequestChain& chain) PEERLANE_REQUIRES(right_);
  Cut cutWord(AgentWork& work, RequestChain& chain) PEERLANE_REQUIRES(right_);
  Cut cutAddition(AgentWork& work, RequestChain& chain) PEERLANE_REQUIRES(right_);
  Cut cutFlush(AgentWork& work, RequestChain& chain) PEERLANE_REQUIRES(right_);
  void addMail(AgentWork& work, RequestChain& chain) PEERLANE_REQUIRES(right_);
  void addNews(RequestChain& chain, News news) PEERLANE_REQUIRES(right_);
  Request& note(RequestChain& chain, AgentWork* work) PEERLANE_REQUIRES(right_);
  void addCount(RequestChain& chain, ibv_wr_opcode opcode) PEERLANE_REQUIRES(right_);
  void sign(RequestChain& chain) PEERLANE_REQUIRES(right_);
  void post(RequestChain& chain) PEERLANE_REQUIRES(right_);
  const MemoryKeys::Key* keyOf(const std::byte* at, uint64_t bytes) PEERLANE_REQUIRES(right_);
  void retire(uint32_t index) PEERLANE_REQUIRES(right_);
  void release(Request& request, bool isGood) PEERLANE_REQUIRES(right_);
  void apply(const News& news) PEERLANE_REQUIRES(right_);
  Status describe(const ibv_wc& completion) const PEERLANE_REQUIRES(right_);
  void end(const Status& why, const AgentWork* guilty, bool isLoud);
  void endLocked(const Status& why, const AgentWork* guilty, bool isLoud)
      PEERLANE_REQUIRES(right_);
  void finishAll(WorkList finished);

  const std::string name_;
  const Surroundings around_;
  const std::unique_ptr<QueuePair> pair_;
  const ControlBlock control_;
  const uint32_t receives_;
  const Agreement agreed_;
  const uint32_t mostUnsignalled_;
  const uint64_t serial_;  // of the pair: a late completion of one that had its number is known

  mutable TurnRight right_;
  WorkList waiting_ PEERLANE_GUARDED_BY(right_);   // not posted whole
  WorkList finished_ PEERLANE_GUARDED_BY(right_);  // with their codes, to be told
  std::vector<Request> ring_ PEERLANE_GUARDED_BY(right_);
  uint32_t posted_ PEERLANE_GUARDED_BY(right_) = 0;   // ever
  uint32_t retired_ PEERLANE_GUARDED_BY(right_) = 0;  // of them
  uint32_t unsignalled_ PEERLANE_GUARDED_BY(right_) = 0;
  bool owesAnswer_ PEERLANE_GUARDED_BY(right_) = false;  // the unsignalled are of works
  NewsCredits credits_ PEERLANE_GUARDED_BY(right_);
  uint64_t taken_ PEERLANE_GUARDED_BY(right_) = 0;  // news of the peer
  uint64_t told_ PEERLANE_GUARDED_BY(right_) = 0;   // of that count to the peer
  bool isAsked_ PEERLANE_GUARDED_BY(right_) = false;
  std::optional<MemoryKeys::Key> key_ PEERLANE_GUARDED_BY(right_);  // the last one
  uint64_t keysEnded_ PEERLANE_GUARDED_BY(right_) = 0;              // when it was found
  bool isOver_ PEERLANE_GUARDED_BY(right_) = false;
  std::atomic<bool> isWaiting_{false};  // a hint: works wait for room
  mutable Mutex failureLock_;           // taken after right_
  Status failure_ PEERLANE_GUARDED_BY(failureLock_);
};

}  // namespace peerlane
