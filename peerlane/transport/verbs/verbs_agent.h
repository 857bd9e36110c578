// SPDX-License-Identifier: Apache-2.0
//
// VerbsAgent: performs this side's mailbox entries by requests to a NIC, and takes the news of the
// peer. RequestCutter says which entry becomes which requests. All go over the first queue pair of
// the link; large puts and gets over the others, too, once there are any (StripeCutter).
//
// Order: requests of one pair are performed in the order in which they are posted; one after a READ
// of the same mailbox carries a fence, because a device may otherwise go on before the answer is
// there. Where the devices do not place writes in order, an entry other than a word waits for the
// one before it. So do an entry that is shared among the pairs and the one after it. A put ends
// when its last request is acknowledged. A work that has to wait for the peer holds back its own
// mailbox alone.
//
// Failure: when a pair fails, a work that is to blame ends with its code. Where the sides can make
// pairs anew (PairRounds), all others wait for that, and Replay decides which go on; else the link
// ends for all.
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
#include "peerlane/core/shared_log_limit.h"
#include "peerlane/memory/region_directory.h"
#include "peerlane/program/model/mailbox.h"
#include "peerlane/transport/verbs/device/control_block.h"
#include "peerlane/transport/verbs/device/shared_queues.h"
#include "peerlane/transport/verbs/device/turn_right.h"
#include "peerlane/transport/verbs/request/work_pump.h"

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
    // More pairs would be of use; asked once. Null: there are never more. Any thread.
    std::function<void()> wantPairs{};
    // A pair has failed: stopPairs() must follow. Null: pairs are not made anew. Any thread.
    std::function<void()> pairFailed{};
  };

  // `name` is for log lines. `pair` is joined to the peer's. `receives`: news of the peer that may
  // be under way, reserved with the queues.
  VerbsAgent(std::string name, const Surroundings& around, std::unique_ptr<QueuePair> pair,
             ControlBlock control, uint32_t receives, const VerbsAgreement& agreed);
  // Closes.
  ~VerbsAgent() override;

  Served serve(AgentWork& work) override;
  void abandon(AgentWork& work, Code code) override;
  void handedOut(AgentWork& first, AgentWork& last) override;

  // This side begins no making of pairs anew before a request was answered: they would fail again,
  // and somebody waits. Called before the first request.
  void expectFirstAnswer();
  // All words from now on go as mails. Any thread.
  void mailWords() { mailsWords_.store(true, std::memory_order_release); }
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
  // As far as large transfers may be shared.
  uint32_t pairs() const { return pairs_.load(std::memory_order_relaxed); }
  // A pair has failed, and is not made anew yet.
  bool isBroken() const;

  // --- Progress thread; for PairRounds ---
  // The pairs, joined to the peer's, take a share of what is large. Their requests are reserved
  // with the queues, and given back with them.
  void addPairs(std::vector<std::unique_ptr<QueuePair>> pairs);
  // Ends all pairs: after it the devices touch no memory for them, and works wait; or the link has
  // ended, and isBroken() is false. Returns how many news of the peer this side took; null: it
  // cannot tell.
  std::optional<uint64_t> stopPairs();
  // `pair`, joined to the peer's, is the only one now. News of the peer is taken from here on;
  // requests wait for goOn(). `taken`: what the peer returned for its side.
  void join(std::unique_ptr<QueuePair> pair, std::optional<uint64_t> taken);
  // The peer has joined its pair, too.
  void goOn();

  void ended(const ibv_wc& completion) override;
  void arrived(uint32_t number) override;
  bool settle(bool isPolled) override;
  void breakOff(const Status& why, bool isOfPeer) override;
  void fail(const Status& why) override;

 private:
  enum class State : uint8_t {
    kRunning,
    kBroken,  // a pair has failed: stopPairs() and join() follow
    kJoined,  // the pair is new: nothing is posted until goOn()
    kOver,
  };
  // How often the pairs are made anew in a row, without an answer in between. Where nothing was
  // acknowledged after all tries, which take long, another pair is tried once. A refusal is an
  // answer, and ends a work: neither the side that posted it nor the owner counts it, and neither
  // counts what the peer begins. A flush goes one over the limit, until endPairs(): an event that
  // is not read yet may say that a refusal caused it.
  static constexpr uint32_t kMostRemakes = 3;
  static constexpr uint32_t kMostRetries = 1;
  static constexpr uint32_t kNotCounted = UINT32_MAX;

  // How the last entry of a mailbox goes (Mailbox::agentPart): by one pair, by all, or as a mail.
  static constexpr uint32_t kAlone = 0, kShared = 1, kAsMail = 2;

  bool mayBeShared(const MailboxEntry& entry);
  uint64_t endPairs();
  void halt(const Status& why, AgentWork* guilty, uint32_t mostRemakes) PEERLANE_REQUIRES(right_);
  void end(const Status& why, const AgentWork* guilty, bool mayAnswer = false)
      PEERLANE_REQUIRES(right_);
  bool mayFollow(const MailboxEntry& entry, uint32_t before) const;
  bool goesAsMail(const MailboxEntry& entry) const;
  void accept(AgentWork& work) PEERLANE_REQUIRES(right_);
  // Accepts the works from `first` to `last`, if any, posts, and tells works of their end.
  bool pumpAndTell(AgentWork* first = nullptr, AgentWork* last = nullptr);
  void flushGets(const WorkList& finished) const;

  const std::string name_;
  const Surroundings around_;
  const ControlBlock control_;
  const uint32_t receives_;
  const bool ordersWrites_;  // the devices do
  const bool adds_;          // they do as well

  mutable SharedLogLimit flushLines_;
  LogLimit newsLines_;  // with the right
  mutable TurnRight right_;
  State state_ PEERLANE_GUARDED_BY(right_) = State::kRunning;
  bool isStopped_ PEERLANE_GUARDED_BY(right_) = false;     // the pairs have ended
  bool noneExecuted_ PEERLANE_GUARDED_BY(right_) = false;  // as for Replay
  bool isAnswered_ PEERLANE_GUARDED_BY(right_) = true;     // false: expectFirstAnswer()
  uint32_t remakes_ PEERLANE_GUARDED_BY(right_) = 0;       // in a row
  // The last of them was counted because the device flushed a request of this side. An event may
  // say later that it did so because it refused the peer, or name the fault, and is kept then.
  std::optional<Status> flush_ PEERLANE_GUARDED_BY(right_);
  WorkPump works_ PEERLANE_GUARDED_BY(right_);
  // pairFailed() has to be called.
  bool owesFailure_ PEERLANE_GUARDED_BY(right_) = false;
  // Its end, or a slot for which another link waits, that nobody was told of.
  bool hasNews_ PEERLANE_GUARDED_BY(right_) = false;
  std::atomic<bool> isWaiting_{false};  // a hint: works wait for room
  std::atomic<uint32_t> pairs_{1};      // a hint: lanes_
  // Words that are served from now on go as mails. Release by mailWords(), acquire by serve().
  std::atomic<bool> mailsWords_{!ordersWrites_};
  std::atomic<bool> hasAsked_{false};  // for more of them
  mutable Mutex failureLock_;          // taken after right_
  Status failure_ PEERLANE_GUARDED_BY(failureLock_);
};

}  // namespace peerlane
