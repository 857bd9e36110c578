// SPDX-License-Identifier: Apache-2.0
//
// PairRounds: makes the queue pairs of a link after its first one, together with the peer's: more
// of them when something large is to move, and all anew when one has failed.
//
// A round begins with new pairs. Each side ends its old pairs before it says so, so nothing of an
// earlier round takes effect afterwards; it says which news of the peer it took, and its new pair;
// it joins that to the peer's as soon as it has heard of it, and says that it is ready; it posts
// requests once the peer is ready, too, because a device that is not joined yet drops them. Either
// side, or both, may begin. A round that takes longer than PEERLANE_PEER_TIMEOUT ends the link.
// explore/remake_protocol.h.
//
// Threads: progress, but for wantMore() and failed(), which any thread may call.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "peerlane/core/config.h"
#include "peerlane/os/event_loop.h"
#include "peerlane/transport/link_line.h"
#include "peerlane/transport/verbs/device/queue_pair.h"
#include "peerlane/transport/verbs/device/verbs_nic.h"
#include "peerlane/transport/verbs/pair_words.h"
#include "peerlane/transport/verbs/verbs_agent.h"

namespace peerlane {

// How pairs of this side are joined to the peer's.
struct PairWay {
  VerbsOffer peer;
  verbs::Gid from;
  verbs::Gid to;
};

class PairRounds {
 public:
  // `config` and `loop` outlive it. `mostPairs`: that the two sides agreed on.
  PairRounds(std::string name, std::shared_ptr<VerbsNic> nic, std::shared_ptr<LinkLine> line,
             const Config& config, EventLoop& loop, PairWay way, uint32_t mostPairs);
  ~PairRounds() { stop(); }
  PairRounds(const PairRounds&) = delete;
  PairRounds& operator=(const PairRounds&) = delete;

  // The peer's words are heard from here on. `agent` lives until stop().
  void begin(VerbsAgent& agent);
  // Nothing is asked of the agent any more. Idempotent.
  void stop();

  // As the agent asks for it. Before begin() and after stop() nothing comes of it.
  void wantMore();
  void failed();

 private:
  // The pairs of a round that the agent does not have yet.
  struct Making {
    std::vector<std::unique_ptr<QueuePair>> own;
    bool isJoined = false;
    bool isPeerReady = false;
  };
  // The posted functions find it as long as it lives.
  struct Self {
    PairRounds* rounds;
  };

  void post(void (PairRounds::*act)());
  void hear(std::span<const std::byte> bytes);
  Status heed(const PairWords& words);
  void mend();
  // False: the link has ended, and the peer is told of no pair.
  bool beginRound();
  Status heedAnew(const PairWords& words);
  void makeMore();
  Status heedMore(const PairWords& words);
  void useMore();
  void dropMore();
  Status create();
  Status connect(QueuePair& own, const PairWords::Pair& theirs);
  void say(PairWords::Kind kind, const std::vector<std::unique_ptr<QueuePair>>& pairs);
  void giveUp(const Status& why);

  const std::string name_;
  const std::shared_ptr<VerbsNic> nic_;
  const std::shared_ptr<LinkLine> line_;
  const Config& config_;
  EventLoop& loop_;
  const PairWay way_;
  const uint32_t mostPairs_;
  const std::shared_ptr<Self> self_;
  VerbsAgent* agent_ = nullptr;

  uint32_t round_ = 0;
  Timer patience_;                  // with the peer's part in the round
  bool isMaking_ = false;           // of this round: not ready on both sides
  std::unique_ptr<QueuePair> own_;  // said, and not joined yet
  std::optional<uint64_t> taken_;
  std::unique_ptr<Making> more_;
  bool hasMore_ = false;  // of this round
};

}  // namespace peerlane
