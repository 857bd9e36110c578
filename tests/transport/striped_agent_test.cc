// SPDX-License-Identifier: Apache-2.0
//
// Several frame agents as one, against a correct peer on wires that are held, frozen and cut. Over
// real sockets: tcp_link_test.cc and the contract suite.
#include "peerlane/transport/striped_agent.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "peerlane/program/words/word.h"
#include "tests/core/quiet_log.h"
#include "tests/fake/fake_regions.h"
#include "tests/fake/fake_wire.h"
#include "tests/fake/patterned_bytes.h"

namespace peerlane {
namespace {

constexpr size_t kStripes = 3;
constexpr size_t kBytes = 3'000'000;
constexpr uint64_t kLeastPartBytes = 256 * 1024;
constexpr StripeBytes kShared{.least = 2 * kLeastPartBytes, .leastPart = kLeastPartBytes};

// Two striped agents on three wires, a region of each side, turned by hand.
class StripedAgentTest : public testing::Test {
 protected:
  explicit StripedAgentTest(cpu::CopyTeam* team = nullptr) {
    for (int side : {0, 1}) {
      memory_[side].resize(kBytes);
      remote_[side].grant = regions_[side].add(memory_[side], Access::kRemoteReadWrite);
      std::vector<FrameAgent*> agents;
      for (FakeWire& wire : wires_) {
        agents_[side].push_back(std::make_unique<FrameAgent>("side " + std::to_string(side),
                                                             wire.end(side), regions_[side],
                                                             [this, side] { ++wakes_[side]; }));
        agents.push_back(agents_[side].back().get());
      }
      striped_[side] = std::make_unique<StripedAgent>(
          agents, team, [this, side] { ++wakes_[side]; }, kShared);
    }
    local_.resize(kBytes);
    fillPattern(local_, 1);
  }
  const QuietLog quiet_;

  Piece all() { return {local_.data(), &remote_[1], 0, kBytes}; }
  static MailboxEntry& claim(Mailbox& mailbox, Verb verb) {
    MailboxEntry* const entry = mailbox.claim();
    PEERLANE_CHECK(entry != nullptr);
    entry->verb = verb;
    return *entry;
  }
  static void postPieces(Mailbox& mailbox, Verb verb, const std::vector<Piece>& pieces) {
    MailboxEntry& entry = claim(mailbox, verb);
    entry.pieces = pieces.data();
    entry.pieceCount = static_cast<uint32_t>(pieces.size());
    mailbox.ring();
  }
  // To the last word of the peer's region.
  void postStore(Mailbox& mailbox, uint64_t value, bool onlyAfterPrevious = false) {
    MailboxEntry& entry = claim(mailbox, Verb::kStore);
    entry.remote = &remote_[1];
    entry.remoteOffset = kBytes - 8;
    entry.operand = value;
    entry.onlyAfterPrevious = onlyAfterPrevious;
    mailbox.ring();
  }
  uint64_t stored() const { return loadWord(memory_[1].data() + kBytes - 8, Width::k64); }
  // Without `mailbox` being served by anybody but agents: what ended must have gone on by itself.
  void turn(int times = 1) {
    for (int i = 0; i < times; ++i)
      for (auto& agent : striped_) (void)agent->poll();
  }
  void run(Mailbox& mailbox) {
    mailbox.serve();
    for (int i = 0; i < 2000 && !mailbox.idle(); ++i) turn();
    ASSERT_TRUE(mailbox.idle());
  }
  // Of the first kBytes - 8: the last word is for stores.
  size_t wrong() const { return firstWrong(std::span(memory_[1]).first(kBytes - 8), 1); }

  std::deque<FakeWire> wires_ = [] {
    std::deque<FakeWire> wires;
    for (size_t i = 0; i < kStripes; ++i) wires.emplace_back(i + 1);
    return wires;
  }();
  FakeRegions regions_[2];
  std::vector<std::byte> memory_[2];
  RemoteMemory remote_[2];
  std::atomic<int> wakes_[2] = {};
  std::vector<std::unique_ptr<FrameAgent>> agents_[2];
  std::unique_ptr<StripedAgent> striped_[2];
  std::vector<std::byte> local_;
};

TEST_F(StripedAgentTest, EachWireCarriesItsPartOfAPutAndOfAGet) {
  Mailbox mailbox(*striped_[0]);
  const std::vector<Piece> pieces{all()};
  postPieces(mailbox, Verb::kPut, pieces);
  run(mailbox);
  EXPECT_EQ(mailbox.code(), Code::kOk);
  EXPECT_EQ(firstWrong(memory_[1], 1), kBytes);
  for (FakeWire& wire : wires_) EXPECT_GT(wire.written(0), kBytes / (kStripes + 1));
  std::fill(local_.begin(), local_.end(), std::byte{0});
  postPieces(mailbox, Verb::kGet, pieces);
  run(mailbox);
  EXPECT_EQ(firstWrong(local_, 1), kBytes);
  for (FakeWire& wire : wires_) EXPECT_GT(wire.written(1), kBytes / (kStripes + 1));
}

TEST_F(StripedAgentTest, WhatIsSmallGoesByTheFirstWire) {
  Mailbox mailbox(*striped_[0]);
  const std::vector<Piece> pieces{{local_.data(), &remote_[1], 0, 2 * kLeastPartBytes - 1}};
  postPieces(mailbox, Verb::kPut, pieces);
  postStore(mailbox, 5);
  run(mailbox);
  EXPECT_EQ(stored(), 5u);
  EXPECT_EQ(wires_[1].written(0) + wires_[2].written(0), 0u);
}

TEST_F(StripedAgentTest, WhatIsEnoughForTwoGoesByTwo) {
  Mailbox mailbox(*striped_[0]);
  const std::vector<Piece> pieces{{local_.data(), &remote_[1], 0, 3 * kLeastPartBytes - 1}};
  postPieces(mailbox, Verb::kPut, pieces);
  run(mailbox);
  EXPECT_GT(wires_[1].written(0), kLeastPartBytes);
  EXPECT_EQ(wires_[2].written(0), 0u);
  EXPECT_EQ(firstWrong(std::span(memory_[1]).first(3 * kLeastPartBytes - 1), 1),
            3 * kLeastPartBytes - 1);
}

// With all that follows in its mailbox, though the first wire stands still.
TEST_F(StripedAgentTest, OneOfMediumSizeGoesByAnIdleAgent) {
  Mailbox busy(*striped_[0]);
  Mailbox mailbox(*striped_[0]);
  const std::vector<Piece> pieces{{local_.data(), &remote_[1], 0, kLeastPartBytes}};
  wires_[0].hold(0);
  postPieces(busy, Verb::kPut, pieces);
  busy.serve();
  postPieces(mailbox, Verb::kPut, pieces);
  postStore(mailbox, 21, /*onlyAfterPrevious=*/true);
  run(mailbox);
  EXPECT_EQ(mailbox.code(), Code::kOk);
  EXPECT_EQ(stored(), 21u);
  EXPECT_FALSE(busy.idle());
  EXPECT_EQ(wires_[2].written(0), 0u);
  wires_[0].releaseAll(0);
  run(busy);
}

TEST_F(StripedAgentTest, WhatIsNotMadeIsNotUsed) {
  striped_[0]->setMade(2);
  Mailbox mailbox(*striped_[0]);
  const std::vector<Piece> pieces{all()};
  postPieces(mailbox, Verb::kPut, pieces);
  run(mailbox);
  EXPECT_EQ(firstWrong(memory_[1], 1), kBytes);
  EXPECT_EQ(wires_[2].written(0), 0u);
}

// Of every size, so that parts begin and end at all places of a piece.
TEST_F(StripedAgentTest, ListsAreCutAnywhere) {
  for (const size_t most : {1u, 7u, 100u, 4096u, 50'000u, 700'000u, 1'500'000u}) {
    std::vector<Piece> pieces;
    size_t at = 0;
    for (size_t i = 0; at < kBytes; ++i) {
      const size_t bytes = i % 5 == 4 ? 0 : std::min(kBytes - at, 1 + i * 7919 % most);
      pieces.push_back({local_.data() + at, &remote_[1], at, bytes});
      at += bytes;
    }
    std::fill(memory_[1].begin(), memory_[1].end(), std::byte{0});
    Mailbox mailbox(*striped_[0]);
    postPieces(mailbox, Verb::kPut, pieces);
    run(mailbox);
    EXPECT_EQ(mailbox.code(), Code::kOk) << most;
    EXPECT_EQ(firstWrong(memory_[1], 1), kBytes) << most;
  }
}

TEST_F(StripedAgentTest, AWordWaitsForEveryPart) {
  for (size_t held = 1; held < kStripes; ++held) {
    std::fill(memory_[1].begin(), memory_[1].end(), std::byte{0});
    Mailbox mailbox(*striped_[0]);
    const std::vector<Piece> pieces{{local_.data(), &remote_[1], 0, kBytes - 8}};
    wires_[held].hold(0);
    postPieces(mailbox, Verb::kPut, pieces);
    postStore(mailbox, 7 + held);
    for (int i = 0; i < 300; ++i) {  // as turns of the engine do
      mailbox.serve();
      turn();
    }
    EXPECT_NE(wrong(), kBytes - 8);
    EXPECT_EQ(stored(), 0u) << held;
    wires_[held].releaseAll(0);
    run(mailbox);
    EXPECT_EQ(wrong(), kBytes - 8);
    EXPECT_EQ(stored(), 7 + held);
  }
}

TEST_F(StripedAgentTest, ASharedOneWaitsForThoseBeforeIt) {
  Mailbox mailbox(*striped_[0]);
  const std::vector<Piece> pieces{all()};
  wires_[0].hold(1);  // the answer to the store
  postStore(mailbox, 9);
  postPieces(mailbox, Verb::kPut, pieces);
  mailbox.serve();
  EXPECT_GT(wires_[0].written(0), 0u) << "the store waits for what does not go with it";
  turn(100);
  EXPECT_EQ(stored(), 9u);
  EXPECT_EQ(wires_[1].written(0), 0u);
  wires_[0].releaseAll(1);
  run(mailbox);
  EXPECT_EQ(firstWrong(memory_[1], 1), kBytes);
}

// Nobody is woken for what cannot be done: whoever serves in each turn would never sleep.
TEST_F(StripedAgentTest, WaitingBehindAFullWireWakesNobody) {
  Mailbox mailbox(*striped_[0]);
  const std::vector<Piece> small{{local_.data(), &remote_[1], 0, kLeastPartBytes}};
  const std::vector<Piece> pieces{all()};
  wires_[0].freeze(1);
  postPieces(mailbox, Verb::kPut, small);
  postPieces(mailbox, Verb::kPut, pieces);
  mailbox.serve();
  turn(5);
  const int before = wakes_[0];
  for (int i = 0; i < 100; ++i) {
    mailbox.serve();
    (void)striped_[0]->poll();
  }
  EXPECT_EQ(wakes_[0], before);
  wires_[0].thaw(1);
  run(mailbox);
  EXPECT_EQ(firstWrong(memory_[1], 1), kBytes);
}

TEST_F(StripedAgentTest, OtherMailboxesDoNotWait) {
  Mailbox large(*striped_[0]);
  Mailbox small(*striped_[0]);
  const std::vector<Piece> pieces{{local_.data(), &remote_[1], 0, kBytes - 8}};
  wires_[2].hold(0);
  postPieces(large, Verb::kPut, pieces);
  large.serve();
  postStore(small, 3);
  turn(20);  // what comes before it on the first wire
  run(small);
  EXPECT_EQ(stored(), 3u);
  EXPECT_FALSE(large.idle());
  wires_[2].releaseAll(0);
  run(large);
  EXPECT_EQ(wrong(), kBytes - 8);
}

TEST_F(StripedAgentTest, AWordThatDependsOnARefusedPartIsNotStored) {
  Mailbox mailbox(*striped_[0]);
  // The last part reaches beyond the region; what comes before it is performed.
  const std::vector<Piece> pieces{{local_.data(), &remote_[1], 0, kBytes - 1'000'000},
                                  {local_.data(), &remote_[1], kBytes - 8, 1'000'000}};
  postPieces(mailbox, Verb::kPut, pieces);
  postStore(mailbox, 11, /*onlyAfterPrevious=*/true);
  run(mailbox);
  EXPECT_EQ(mailbox.code(), Code::kInvalidArgument);
  EXPECT_EQ(stored(), 0u);
}

// Between the end of all parts and that of the whole, an agent may be asked for the word.
class PutsElsewhere final : public Agent {
 public:
  explicit PutsElsewhere(Agent& words) : words_(words) {}
  Served serve(AgentWork& work) override {
    if (work.entry->verb != Verb::kPut) return words_.serve(work);
    put = &work;
    return Served::kSent;
  }
  AgentWork* put = nullptr;

 private:
  Agent& words_;
};

TEST_F(StripedAgentTest, AWordWaitsForThePutOfAnotherAgent) {
  PutsElsewhere agent(*agents_[0][0]);
  Mailbox mailbox(agent);
  const std::vector<Piece> pieces{{local_.data(), &remote_[1], 0, 8}};
  postPieces(mailbox, Verb::kPut, pieces);
  postStore(mailbox, 13, /*onlyAfterPrevious=*/true);
  mailbox.serve();
  turn(5);
  EXPECT_EQ(wires_[0].written(0), 0u);
  Mailbox::finish(*agent.put, Code::kOk);
  run(mailbox);
  EXPECT_EQ(stored(), 13u);
}

TEST_F(StripedAgentTest, AnAbandonedOneEndsWhenEveryPartHas) {
  for (const Verb verb : {Verb::kPut, Verb::kGet}) {
    Mailbox mailbox(*striped_[0]);
    const std::vector<Piece> pieces{all()};
    wires_[1].freeze(1);
    postPieces(mailbox, verb, pieces);
    mailbox.serve();
    turn(5);
    mailbox.abort(Code::kCancelled);
    mailbox.serve();
    turn(50);
    // A get ends whatever the peer does; of a put some frames may be on their way.
    EXPECT_EQ(mailbox.idle(), verb == Verb::kGet);
    wires_[1].thaw(1);
    run(mailbox);
    EXPECT_EQ(mailbox.code(), Code::kCancelled);
    mailbox.clearAbort();
    mailbox.resetCode();
    postPieces(mailbox, Verb::kPut, pieces);
    run(mailbox);
    EXPECT_EQ(mailbox.code(), Code::kOk);
    EXPECT_EQ(firstWrong(memory_[1], 1), kBytes);
  }
}

TEST_F(StripedAgentTest, OneWireThatEndsEndsAll) {
  Mailbox mailbox(*striped_[0]);
  const std::vector<Piece> pieces{all()};
  wires_[2].loseAfter(0, 300'000);
  postPieces(mailbox, Verb::kPut, pieces);
  postStore(mailbox, 1);
  run(mailbox);
  EXPECT_EQ(mailbox.code(), Code::kPeerLost);
  EXPECT_EQ(stored(), 0u);
  EXPECT_EQ(striped_[0]->health().code(), Code::kPeerLost);
  for (const auto& agent : agents_[0]) EXPECT_EQ(agent->health().code(), Code::kPeerLost);
  EXPECT_GT(wakes_[0], 0);
  mailbox.resetCode();
  postStore(mailbox, 2);
  mailbox.serve();
  EXPECT_TRUE(mailbox.idle());
  EXPECT_EQ(mailbox.code(), Code::kPeerLost);
}

TEST_F(StripedAgentTest, CloseEndsWhatIsUnderWay) {
  Mailbox mailbox(*striped_[0]);
  Mailbox other(*striped_[0]);
  const std::vector<Piece> pieces{all()};
  for (FakeWire& wire : wires_) wire.freeze(1);
  for (Mailbox* each : {&mailbox, &other}) {
    postPieces(*each, Verb::kPut, pieces);
    postPieces(*each, Verb::kGet, pieces);
    each->serve();
  }
  turn(3);
  striped_[0]->close(Code::kClosed);
  for (Mailbox* each : {&mailbox, &other}) {
    each->serve();
    EXPECT_TRUE(each->idle());
    EXPECT_EQ(each->code(), Code::kClosed);
  }
  striped_[0]->close(Code::kPeerLost);
  EXPECT_EQ(striped_[0]->health().code(), Code::kClosed);
}

// All that small traffic can leave behind on an agent that is not polled when it is quiet.
TEST_F(StripedAgentTest, AQuietAgentHasNothingToDo) {
  const auto quiet = [&](int side) {
    return std::all_of(agents_[side].begin(), agents_[side].end(),
                       [](const auto& agent) { return agent->isQuiet(); });
  };
  turn(2);
  EXPECT_TRUE(quiet(0) && quiet(1));
  Mailbox mailbox(*agents_[0][1]);  // past the striped agent, as a peer may do
  wires_[1].setMayOwe(1, true);
  for (const bool full : {false, true}) {
    if (full) wires_[1].freeze(1);
    const std::vector<Piece> pieces{{local_.data(), &remote_[1], 0, full ? 200'000u : 8u}};
    postPieces(mailbox, Verb::kPut, pieces);
    postStore(mailbox, 5);
    mailbox.serve();
    if (full) turn(5);
    if (full) wires_[1].thaw(1);
    for (int i = 0; i < 200 && !mailbox.idle(); ++i) {
      turn();
      mailbox.serve();
    }
    EXPECT_TRUE(mailbox.idle()) << full;
    turn(3);
    EXPECT_TRUE(quiet(0) && quiet(1)) << full;
  }
  const std::vector<Piece> get{{local_.data(), &remote_[1], 0, 8}};
  wires_[1].freeze(1);
  postPieces(mailbox, Verb::kGet, get);
  mailbox.serve();
  turn(2);
  EXPECT_TRUE(quiet(0)) << "it waits";
  mailbox.abort(Code::kCancelled);
  mailbox.serve();
  EXPECT_FALSE(quiet(0)) << "an abandoned get ends in a poll";
  turn();
  EXPECT_TRUE(mailbox.idle());
  agents_[0][1]->close(Code::kClosed);
  EXPECT_FALSE(quiet(0));
}

struct WithTeam {
  Metrics metrics;
  std::unique_ptr<cpu::CopyTeam, cpu::CopyTeam::End> team =
      cpu::CopyTeam::create(2, metrics).value();
};

class StripedTeamTest : private WithTeam, public StripedAgentTest {
 protected:
  StripedTeamTest() : StripedAgentTest(team.get()) {}
};

// Each side has a thread that polls and a team; two users post, one of them cancels.
TEST_F(StripedTeamTest, ManyThreadsPostAndPoll) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> pollers;
  for (int side : {0, 1})
    pollers.emplace_back([&, side] {
      while (!stop.load()) (void)striped_[side]->poll();
    });
  const size_t half = kBytes / 2;
  const auto user = [&](Mailbox& mailbox, size_t from, bool cancels) {
    std::vector<std::byte> back(half);
    for (int round = 0; round < 20; ++round) {
      const std::vector<Piece> put{{local_.data() + from, &remote_[1], from, half}};
      const std::vector<Piece> get{{back.data(), &remote_[1], from, half}};
      postPieces(mailbox, Verb::kPut, put);
      postPieces(mailbox, Verb::kGet, get);
      mailbox.serve();
      const bool cancelled = cancels && round % 3 == 0;
      if (cancelled) mailbox.abort(Code::kCancelled);
      while (!mailbox.idle()) {
        mailbox.serve();
        std::this_thread::yield();
      }
      mailbox.clearAbort();
      if (!cancelled) {
        EXPECT_EQ(mailbox.code(), Code::kOk);
        EXPECT_TRUE(std::equal(back.begin(), back.end(), &local_[from]));
      }
      mailbox.resetCode();
    }
  };
  Mailbox mailboxes[2] = {Mailbox(*striped_[0]), Mailbox(*striped_[0])};
  std::thread first(user, std::ref(mailboxes[0]), 0, false);
  std::thread second(user, std::ref(mailboxes[1]), half, true);
  first.join();
  second.join();
  stop = true;
  for (std::thread& poller : pollers) poller.join();
}

// Whoever posts while the link ends still has an end of what it has posted, with nobody polling.
TEST_F(StripedTeamTest, WhatIsPostedWhileItEndsEnds) {
  const std::vector<Piece> pieces{all()};
  std::deque<Mailbox> mailboxes;
  for (int i = 0; i < 4; ++i) mailboxes.emplace_back(*striped_[0]);
  std::atomic<int> begun = 0;
  std::vector<std::thread> users;
  for (Mailbox& mailbox : mailboxes)
    users.emplace_back([&] {
      for (int round = 0; round < 8; ++round) {
        postPieces(mailbox, round % 2 == 0 ? Verb::kPut : Verb::kGet, pieces);
        mailbox.serve();
        ++begun;
      }
    });
  while (begun < 4) (void)striped_[1]->poll();
  striped_[0]->close(Code::kClosed);
  for (std::thread& user : users) user.join();
  for (Mailbox& mailbox : mailboxes) {
    mailbox.serve();
    EXPECT_TRUE(mailbox.idle());
    EXPECT_EQ(mailbox.code(), Code::kClosed);
  }
}

}  // namespace
}  // namespace peerlane
