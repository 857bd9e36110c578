// SPDX-License-Identifier: Apache-2.0
//
// StripedAgent: the frame agents of one link, as one agent. A large put or get is shared among
// them, or as many of them as it is large enough for. One of medium size goes by an idle agent, and
// the entries after it in its mailbox by the same. Everything else goes by the first one. With one
// agent it is that agent.
//
// Order: as for FrameAgent, but by mailboxes alone: entries of different mailboxes have none. The
// entries of a mailbox that come after a shared one wait until all of its parts have ended at the
// peer, and a shared one until those before it have: one trip each, which is why smaller transfers
// are not shared.
//
// Threads: as for FrameAgent. Where a team is given, its threads poll agents as well while bytes
// come or go over more than one.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "peerlane/core/mutex.h"
#include "peerlane/core/status.h"
#include "peerlane/program/cpu/copy_team.h"
#include "peerlane/program/model/mailbox.h"
#include "peerlane/transport/frame_agent.h"
#include "peerlane/transport/striped_transfer.h"

namespace peerlane {

// Transfers of `least` bytes or more are shared, in parts of about `leastPart` or more. Below it
// the trip for the answer, and a helper that wakes up, cost what is gained (seen over loopback on
// 16 cores: with 4 sockets 1 MiB in 242 us, 2 MiB in 354, 4 MiB in 560; with one in 215 to 258,
// 500, 800 to 960). Those below `leastElsewhere` go by the first agent.
struct StripeBytes {
  uint64_t leastElsewhere = 64 * 1024;
  uint64_t least = 2 * 1024 * 1024;
  uint64_t leastPart = 256 * 1024;
};

class StripedAgent final : public Agent {
 public:
  // `agents`, at least one, and `team`, which may be null, outlive it. `workArrived` as for
  // FrameAgent. `shared` is another one only in tests.
  StripedAgent(const std::vector<FrameAgent*>& agents, cpu::CopyTeam* team,
               std::function<void()> workArrived, const StripeBytes& shared = {});
  // Closes.
  ~StripedAgent() override;
  StripedAgent(const StripedAgent&) = delete;
  StripedAgent& operator=(const StripedAgent&) = delete;

  // The first `agents` can be used; in the beginning all. Any thread.
  void setMade(uint32_t agents) { made_.store(agents, std::memory_order_release); }
  uint32_t made() const { return made_.load(std::memory_order_acquire); }

  Served serve(AgentWork& work) override;
  void abandon(AgentWork& work, Code code) override;

  // As FrameAgent::poll(). The first failure of an agent ends the others with its code.
  bool poll();
  // The first failure that was found; sticky.
  Status health() const;
  void close(Code code);

 private:
  // An agent that has moved so much in one poll is busy with a part: others may be, too.
  static constexpr size_t kBulkBytes = 64 * 1024;
  // Of each agent, when one has ended: a peer that sends on must not hold the turn.
  static constexpr int kMostLastPolls = 16;

  uint32_t partsOf(uint64_t bytes) const;
  uint32_t agentFor(uint64_t bytes);
  void share(AgentWork& work, uint64_t bytes, uint32_t parts);
  bool pollAgents();
  void failWith(const Status& why);
  void endAgents(Code code);
  void serveTransfers();
  void serveParts(StripedTransfer& transfer);
  // The next live one that began after `number`, used by this thread until leave(); null: none.
  StripedTransfer* use(uint64_t number);
  StripedTransfer* useOf(const AgentWork& work);
  bool isShared(const AgentWork& work) const;
  StripedTransfer* liveOf(const AgentWork& work) const PEERLANE_REQUIRES(lock_);
  // True: others have ended, and a poll must finish them.
  bool leave(StripedTransfer& transfer);

  const std::vector<FrameAgent*> agents_;
  cpu::CopyTeam* const team_;
  const std::function<void()> workArrived_;
  const StripeBytes shared_;

  std::atomic<uint32_t> made_;
  std::atomic<uint32_t> turns_{0};      // of agentFor()
  std::atomic<bool> isPolling_{false};  // the right to poll()
  std::vector<FrameAgent*> awake_;      // of the poll in progress
  bool isBulk_ = false;                 // of the last poll: several agents have moved much
  // Every agent has ended. Sequentially consistent, because its partner is the right to serve a
  // part's mailbox (serveParts()).
  std::atomic<bool> hasFailed_{false};
  std::atomic<size_t> liveCount_{0};  // changed under the lock
  mutable Mutex lock_;
  mutable Status failure_ PEERLANE_GUARDED_BY(lock_);
  std::vector<std::unique_ptr<StripedTransfer>> transfers_ PEERLANE_GUARDED_BY(lock_);
  std::vector<StripedTransfer*> live_ PEERLANE_GUARDED_BY(lock_);  // oldest first
  std::vector<StripedTransfer*> free_ PEERLANE_GUARDED_BY(lock_);
  uint64_t lastNumber_ PEERLANE_GUARDED_BY(lock_) = 0;
};

}  // namespace peerlane
