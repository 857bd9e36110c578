// SPDX-License-Identifier: Apache-2.0
//
// The frame agent against a correct peer on a faulty wire. What a hostile peer can do is in
// frame_violation_test.cc, what every link does in the contract suite.
#include "peerlane/transport/frame_agent.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "peerlane/program/words/word.h"
#include "tests/core/expect_ok.h"
#include "tests/core/quiet_log.h"
#include "tests/fake/fake_regions.h"
#include "tests/fake/fake_wire.h"
#include "tests/fake/patterned_bytes.h"

namespace peerlane {
namespace {

// Two agents on one wire, one region each, turned by hand.
class FrameAgentTest : public testing::Test {
 protected:
  static constexpr size_t kBytes = 600'000;

  FrameAgentTest() {
    for (int side : {0, 1}) {
      memory_[side].resize(kBytes);
      RemoteMemory& remote = remote_[side];
      remote.grant = regions_[side].add(words(side), Access::kRemoteReadWrite);
      agents_[side] =
          std::make_unique<FrameAgent>("side " + std::to_string(side), wire_.end(side),
                                       regions_[side], [this, side] { ++wakes_[side]; });
    }
    local_.resize(kBytes);
  }

  const QuietLog quiet_;  // ends are its subject

  // The region of `side`, 8-aligned because operator new is.
  std::span<std::byte> words(int side) { return memory_[side]; }
  Piece all(int owner) { return {local_.data(), &remote_[owner], 0, kBytes}; }
  void turn(int times = 1) {
    for (int i = 0; i < times; ++i)
      for (auto& agent : agents_) (void)agent->poll();
  }

  FakeWire wire_{1};
  FakeRegions regions_[2];
  std::vector<std::byte> memory_[2];
  RemoteMemory remote_[2];
  int wakes_[2] = {};
  std::unique_ptr<FrameAgent> agents_[2];
  std::vector<std::byte> local_;
};

// post() of a Poster for an agent that is no Link.
class Box {
 public:
  explicit Box(Agent& agent) : mailbox(agent) {}
  void post(Verb verb, std::vector<Piece> list, const RemoteMemory* word = nullptr,
            uint64_t operand = 0, bool mayLinger = false) {
    pieces.push_back(std::move(list));
    MailboxEntry* entry = mailbox.claim();
    ASSERT_NE(entry, nullptr);
    entry->verb = verb;
    entry->pieces = pieces.back().data();
    entry->pieceCount = static_cast<uint32_t>(pieces.back().size());
    entry->remote = word;
    entry->operand = operand;
    entry->mayLinger = mayLinger;
    mailbox.ring();
  }
  Mailbox mailbox;
  std::deque<std::vector<Piece>> pieces;
};

TEST_F(FrameAgentTest, APutEndsOnlyWhenThePeerAnswered) {
  fillPattern(local_, 1);
  Box box(*agents_[0]);
  wire_.hold(1);  // nothing of the peer's answers arrives
  box.post(Verb::kPut, {all(1)});
  for (int i = 0; i < 50; ++i) {
    box.mailbox.serve();
    turn();
  }
  EXPECT_EQ(firstWrong(memory_[1], 1), kBytes);  // applied
  EXPECT_FALSE(box.mailbox.idle());              // but this side cannot know
  wire_.release(1, kFrameHeaderBytes - 1);
  turn(3);
  EXPECT_FALSE(box.mailbox.idle());
  wire_.releaseAll(1);
  turn(2);
  EXPECT_TRUE(box.mailbox.idle());
  EXPECT_EQ(box.mailbox.code(), Code::kOk);
}

TEST_F(FrameAgentTest, AFrozenPeerLeavesWaitingWorksCancellable) {
  Box begun(*agents_[0]);
  Box waiting(*agents_[0]);
  wire_.freeze(1);
  begun.post(Verb::kPut, {all(1)});
  waiting.post(Verb::kPut, {all(1)});
  for (int i = 0; i < 10; ++i) {
    begun.mailbox.serve();
    waiting.mailbox.serve();
    turn();
  }
  EXPECT_FALSE(begun.mailbox.idle());
  EXPECT_FALSE(waiting.mailbox.idle());
  waiting.mailbox.abort(Code::kCancelled);
  begun.mailbox.abort(Code::kCancelled);
  waiting.mailbox.serve();
  begun.mailbox.serve();
  EXPECT_TRUE(waiting.mailbox.idle());  // it never began
  EXPECT_EQ(waiting.mailbox.code(), Code::kCancelled);
  EXPECT_FALSE(begun.mailbox.idle());  // its memory may be read in the middle of a frame
  wire_.thaw(1);
  fillPattern(local_, 4);
  turn(50);
  EXPECT_TRUE(begun.mailbox.idle());
  EXPECT_EQ(begun.mailbox.code(), Code::kCancelled);
  EXPECT_TRUE(agents_[1]->health().isOk());
}

// What goes on after works were abandoned: bytes are counted on the wire.
class AbandonedWork : public FrameAgentTest, public testing::WithParamInterface<Verb> {
 protected:
  static constexpr size_t kMuch = 4 << 20;
  static constexpr size_t kPiece = 2048;  // more pieces than requests may be open

  AbandonedWork() : here_(kMuch), there_(kMuch) {
    // One memory twice: blocks that alternate between them share no frame.
    far_.grant = regions_[1].add(there_, Access::kRemoteReadWrite);
    alsoFar_.grant = regions_[1].add(there_, Access::kRemoteReadWrite);
  }
  // Whose bytes they are.
  int sender() const { return GetParam() == Verb::kPut ? 0 : 1; }
  std::vector<Piece> list(size_t pieceBytes) {
    std::vector<Piece> pieces;
    for (size_t at = 0; at < kMuch; at += pieceBytes)
      pieces.push_back(
          {here_.data() + at, pieces.size() % 2 == 0 ? &far_ : &alsoFar_, at, pieceBytes});
    return pieces;
  }
  std::vector<std::byte>& source() { return sender() == 0 ? here_ : there_; }
  const std::vector<std::byte>& destination() const { return sender() == 0 ? there_ : here_; }
  void finish(Box& box) {
    for (int i = 0; i < 5000 && !box.mailbox.idle(); ++i) {
      box.mailbox.serve();
      turn();
    }
    ASSERT_TRUE(box.mailbox.idle());
  }
  void expectAllMoves(Box& box, std::vector<Piece> pieces, uint64_t seed) {
    box.mailbox.clearAbort();
    box.mailbox.resetCode();
    fillPattern(source(), seed);
    box.post(GetParam(), std::move(pieces));
    finish(box);
    EXPECT_EQ(box.mailbox.code(), Code::kOk);
    EXPECT_EQ(firstWrong(destination(), seed), kMuch);
  }

  std::vector<std::byte> here_;
  std::vector<std::byte> there_;
  RemoteMemory far_;
  RemoteMemory alsoFar_;
};

INSTANTIATE_TEST_SUITE_P(Verbs, AbandonedWork, testing::Values(Verb::kPut, Verb::kGet),
                         [](const auto& each) { return each.param == Verb::kPut ? "Put" : "Get"; });

TEST_P(AbandonedWork, SendsOneWindowMoreAtMost) {
  for (const size_t pieceBytes : {kMuch, kPiece}) {
    Box box(*agents_[0]);
    box.post(GetParam(), list(pieceBytes));
    for (int i = 0; i < 5; ++i) {
      box.mailbox.serve();
      turn();
    }
    ASSERT_FALSE(box.mailbox.idle());
    const uint64_t before = wire_.written(sender());
    ASSERT_GT(before, 0u);
    box.mailbox.abort(Code::kCancelled);
    finish(box);
    EXPECT_EQ(box.mailbox.code(), Code::kCancelled);
    // The window, and headers: those of its batch, and one for each open request.
    EXPECT_LE(wire_.written(sender()) - before,
              FrameSender::kWindowBytes + (64 + kFrameMaxRequests) * kFrameHeaderBytes);
    turn(3);
    EXPECT_EQ(regions_[0].pins() + regions_[1].pins(), 0u);
    // The next one finds everything as it should be.
    expectAllMoves(box, list(pieceBytes), pieceBytes);
  }
}

TEST_P(AbandonedWork, EndsWhereverItStands) {
  for (int turns = 0; turns < 90; ++turns) {
    Box box(*agents_[0]);
    Box word(*agents_[0]);
    box.post(GetParam(), list(turns % 2 == 0 ? kMuch : kPiece));
    box.post(Verb::kAdd64, {}, &remote_[1], 1);
    for (int i = 0; i < turns; ++i) {
      box.mailbox.serve();
      turn();
    }
    box.mailbox.abort(Code::kCancelled);
    finish(box);
    ASSERT_TRUE(box.mailbox.code() == Code::kCancelled || box.mailbox.code() == Code::kOk);
    word.post(Verb::kAdd64, {}, &remote_[1], 1);
    finish(word);
    ASSERT_EQ(word.mailbox.code(), Code::kOk);
    turn(3);
    ASSERT_EQ(regions_[0].pins() + regions_[1].pins(), 0u) << "after " << turns << " turns";
  }
  Box box(*agents_[0]);
  expectAllMoves(box, list(kMuch), 9);
}

// A get that waits for its turn at the peer does not wait there to be told that it is dropped.
TEST_F(FrameAgentTest, AnAbandonedGetEndsBeforeTheOneInFrontOfIt) {
  std::vector<std::byte> here(4 << 20);
  std::vector<std::byte> there(4 << 20);
  RemoteMemory far;
  far.grant = regions_[1].add(there, Access::kRemoteReadWrite);
  fillPattern(there, 5);
  Box first(*agents_[0]);
  Box second(*agents_[0]);
  first.post(Verb::kGet, {{here.data(), &far, 0, here.size()}});
  second.post(Verb::kGet, {all(1)});
  first.mailbox.serve();
  second.mailbox.serve();
  turn(3);
  second.mailbox.abort(Code::kCancelled);
  for (int i = 0; i < 1000 && !second.mailbox.idle(); ++i) {
    second.mailbox.serve();
    turn();
  }
  EXPECT_TRUE(second.mailbox.idle());
  EXPECT_EQ(second.mailbox.code(), Code::kCancelled);
  EXPECT_FALSE(first.mailbox.idle());
  turn(1000);
  EXPECT_TRUE(first.mailbox.idle());
  EXPECT_EQ(first.mailbox.code(), Code::kOk);
  EXPECT_EQ(firstWrong(here, 5), here.size());
  EXPECT_EQ(regions_[1].pins(), 0u);
}

// Its memory is the caller's again at once, also in the middle of a frame.
TEST_F(FrameAgentTest, AnAbandonedGetEndsWhileThePeerIsFrozen) {
  for (const size_t arrived : {size_t{0}, kFrameHeaderBytes - 1, kFrameHeaderBytes + kBytes / 3}) {
    fillPattern(memory_[1], 6);
    fillPattern(local_, 1);
    Box box(*agents_[0]);
    wire_.hold(1);
    box.post(Verb::kGet, {all(1)});
    for (int i = 0; i < 10; ++i) {
      box.mailbox.serve();
      turn();
    }
    wire_.release(1, arrived);
    turn(3);
    wire_.freeze(1);
    EXPECT_FALSE(box.mailbox.idle());
    box.mailbox.abort(Code::kCancelled);
    box.mailbox.serve();
    turn(2);
    EXPECT_TRUE(box.mailbox.idle());
    EXPECT_EQ(box.mailbox.code(), Code::kCancelled);
    fillPattern(local_, 7);
    wire_.releaseAll(1);
    wire_.thaw(1);
    turn(50);
    EXPECT_EQ(firstWrong(local_, 7), kBytes) << "written after " << arrived << " bytes had come";
    EXPECT_TRUE(agents_[0]->health().isOk()) << agents_[0]->health().toString();
    EXPECT_TRUE(agents_[1]->health().isOk()) << agents_[1]->health().toString();
    EXPECT_EQ(regions_[1].pins(), 0u);
    box.mailbox.clearAbort();
    box.mailbox.resetCode();
    box.post(Verb::kGet, {all(1)});
    for (int i = 0; i < 50; ++i) {
      box.mailbox.serve();
      turn();
    }
    EXPECT_EQ(box.mailbox.code(), Code::kOk);
    EXPECT_EQ(firstWrong(local_, 6), kBytes);
  }
}

// The peer's answers are held back, so that nothing but the room itself can be the reason to wake.
TEST_F(FrameAgentTest, WhoWasSentAwayByAnotherWorkIsToldToComeBack) {
  Box first(*agents_[0]);
  Box second(*agents_[0]);
  wire_.hold(1);
  first.post(Verb::kPut, {all(1)});  // more than one batch: it is still being cut
  first.mailbox.serve();
  EXPECT_EQ(wakes_[0], 1) << "whoever polls must hear that there is something to write";
  second.post(Verb::kPut, {{local_.data(), &remote_[1], 0, 8}});
  second.mailbox.serve();
  for (int i = 0; i < 50; ++i) turn();
  EXPECT_GT(wakes_[0], 1);
  second.mailbox.serve();
  wire_.releaseAll(1);
  turn(3);
  EXPECT_TRUE(first.mailbox.idle() && second.mailbox.idle());
}

TEST_F(FrameAgentTest, WhoWasSentAwayByAFullPipeIsToldToComeBack) {
  Box first(*agents_[0]);
  Box second(*agents_[0]);
  wire_.hold(1);
  wire_.freeze(1);
  first.post(Verb::kPut, {{local_.data(), &remote_[1], 0, 100'000}});  // one batch, half written
  first.mailbox.serve();
  turn();
  const int before = wakes_[0];
  second.post(Verb::kPut, {{local_.data(), &remote_[1], 0, 8}});
  second.mailbox.serve();
  turn(3);
  EXPECT_EQ(wakes_[0], before);  // no room, no reason
  wire_.thaw(1);
  turn(5);
  EXPECT_GT(wakes_[0], before);
  second.mailbox.serve();
  wire_.releaseAll(1);
  turn(3);
  EXPECT_TRUE(first.mailbox.idle() && second.mailbox.idle());
}

// The word would announce bytes that never came. It is refused by the peer itself, so it need not
// wait here for the answer to the put.
TEST_F(FrameAgentTest, AWordIsRefusedTogetherWithThePutBeforeIt) {
  RemoteMemory stale = remote_[1];
  stale.grant.generation += 1;
  const auto wordThere = [&] { return loadWord(memory_[1].data(), Width::k64); };
  for (const bool isTied : {true, false}) {
    Box box(*agents_[0]);
    const uint64_t before = wordThere();
    MailboxEntry* const put = box.mailbox.claim();
    const Piece piece{local_.data(), &stale, 0, 100};
    put->verb = Verb::kPut;
    put->pieces = &piece;
    put->pieceCount = 1;
    MailboxEntry* const word = box.mailbox.claim();
    word->verb = Verb::kAdd64;
    word->remote = &remote_[1];
    word->operand = 5;
    word->onlyAfterPrevious = isTied;
    box.mailbox.ring();
    const uint64_t written = wire_.written(0);
    box.mailbox.serve();
    EXPECT_EQ(wire_.written(0) - written, 2 * kFrameHeaderBytes + 100 + kFrameTrailerBytes)
        << "both leave at once";
    turn(3);
    ASSERT_TRUE(box.mailbox.idle());
    EXPECT_NE(box.mailbox.code(), Code::kOk);
    EXPECT_EQ(wordThere() - before, isTied ? 0u : 5u);
  }
}

// A put and a get of memory that its provider took back.
TEST_F(FrameAgentTest, APeerOfAnEarlierVersionIsToldClosedForRevoked) {
  regions_[1].refuse(remote_[1].grant.allocation, Code::kRevoked);
  for (const bool isKnown : {true, false}) {
    FakeWire wire(1);
    FrameAgent asking("asking", wire.end(0), regions_[0], nullptr);
    FrameAgent serving("serving", wire.end(1), regions_[1], nullptr,
                       FrameFeatures{.revoked = isKnown});
    for (const Verb verb : {Verb::kPut, Verb::kGet}) {
      Box box(asking);
      box.post(verb, {Piece{local_.data(), &remote_[1], 0, 100}});
      for (int i = 0; i < 5; ++i) {
        box.mailbox.serve();
        (void)asking.poll();
        (void)serving.poll();
      }
      ASSERT_TRUE(box.mailbox.idle());
      EXPECT_EQ(box.mailbox.code(), isKnown ? Code::kRevoked : Code::kClosed);
    }
  }
}

// A part of memory that its program has lost.
class LostMemory : public FrameAgentTest {
 protected:
  LostMemory()
      : pages_(static_cast<std::byte*>(
            ::mmap(nullptr, kPages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    fillPattern({pages_, kPages}, 3);
    lost_.grant = regions_[1].add({pages_, kPages}, Access::kRemoteReadWrite);
    regions_[1].giveToProgram(lost_.grant.allocation);
  }
  ~LostMemory() override { ::munmap(pages_, kPages); }

  // From here on, up to the end.
  void lose(size_t from) { ASSERT_EQ(::mprotect(pages_ + from, kPages - from, PROT_NONE), 0); }
  Code move(Verb verb, std::vector<Piece> pieces) {
    Box box(*agents_[0]);
    box.post(verb, std::move(pieces));
    for (int i = 0; i < 100 && !box.mailbox.idle(); ++i) {
      box.mailbox.serve();
      turn();
    }
    EXPECT_TRUE(box.mailbox.idle());
    return box.mailbox.code();
  }
  void expectAllWell() {
    EXPECT_OK(agents_[0]->health());
    EXPECT_OK(agents_[1]->health());
    fillPattern(local_, 8);
    EXPECT_EQ(move(Verb::kPut, {all(1)}), Code::kOk);
    EXPECT_EQ(firstWrong(memory_[1], 8), kBytes);
    EXPECT_EQ(regions_[1].pins(), 0u);
  }

  static constexpr size_t kPages = 512 * 1024;
  std::byte* const pages_;
  RemoteMemory lost_;
};

// Wherever the loss begins: in the first frame, in the last one, in the middle of one.
TEST_F(LostMemory, FailsTheTransferAlone) {
  for (const size_t from : {kPages - 4096, size_t{3 * 4096}, size_t{0}}) {
    lose(from);
    const Piece there{local_.data(), &lost_, 0, kPages};
    EXPECT_EQ(move(Verb::kGet, {there}), Code::kRevoked) << from;
    EXPECT_EQ(move(Verb::kPut, {there}), Code::kRevoked) << from;
    const Piece here{pages_, &remote_[1], 0, kPages};
    EXPECT_EQ(move(Verb::kPut, {here}), Code::kRevoked) << from;
    EXPECT_EQ(move(Verb::kGet, {here}), Code::kRevoked) << from;
    expectAllWell();
  }
}

// Of many blocks in one frame one is lost.
TEST_F(LostMemory, OneBlockFailsItsList) {
  lose(kPages - 4096);
  for (const Verb verb : {Verb::kGet, Verb::kPut}) {
    std::vector<Piece> there, here;
    for (size_t at = 0; at < kPages; at += 16384) {
      there.push_back({local_.data() + at, &lost_, at, 16000});
      here.push_back({pages_ + at, &remote_[1], at, 16384});
    }
    // The one that is lost comes first, in the middle, last.
    for (const size_t place : {size_t{0}, there.size() / 2, there.size() - 1}) {
      auto lostThere = there, lostHere = here;
      std::swap(lostThere[place], lostThere.back());
      std::swap(lostHere[place], lostHere.back());
      lostThere[place].bytes = 16384;
      EXPECT_EQ(move(verb, lostThere), Code::kRevoked) << place;
      EXPECT_EQ(move(verb, lostHere), Code::kRevoked) << place;
    }
    there.pop_back();
    EXPECT_EQ(move(verb, there), Code::kOk);
  }
  expectAllWell();
}

TEST_F(LostMemory, AWordThatDependsOnThePutIsRefused) {
  lose(0);
  Box box(*agents_[0]);
  box.post(Verb::kPut, {{pages_, &remote_[1], 0, 4096}});
  MailboxEntry* const word = box.mailbox.claim();
  word->verb = Verb::kAdd64;
  word->remote = &remote_[1];
  word->remoteOffset = 4096;
  word->operand = 5;
  word->onlyAfterPrevious = true;
  box.mailbox.ring();
  const uint64_t before = loadWord(memory_[1].data() + 4096, Width::k64);
  for (int i = 0; i < 20; ++i) {
    box.mailbox.serve();
    turn();
  }
  ASSERT_TRUE(box.mailbox.idle());
  EXPECT_EQ(box.mailbox.code(), Code::kRevoked);
  EXPECT_EQ(loadWord(memory_[1].data() + 4096, Width::k64), before);
}

// It cannot be told, so the link ends.
TEST_F(LostMemory, EndsTheLinkToAPeerOfAnEarlierVersion) {
  lose(0);
  FakeWire wire(1);
  const FrameFeatures old{.trailers = false};
  FrameAgent asking("asking", wire.end(0), regions_[0], nullptr);
  FrameAgent serving("serving", wire.end(1), regions_[1], nullptr, old);
  Box box(asking);
  box.post(Verb::kGet, {Piece{local_.data(), &lost_, 0, kPages}});
  for (int i = 0; i < 20; ++i) {
    box.mailbox.serve();
    (void)asking.poll();
    (void)serving.poll();
  }
  EXPECT_TRUE(box.mailbox.idle());
  EXPECT_EQ(box.mailbox.code(), Code::kPeerLost);
  EXPECT_EQ(serving.health().code(), Code::kUnavailable);
  EXPECT_NE(serving.health().message().find("version"), std::string_view::npos);
}

// No call of the system stores a word at once.
TEST_F(LostMemory, WordsInMemoryOfTheProgramAreRefused) {
  regions_[1].giveToProgram(remote_[1].grant.allocation);
  Box box(*agents_[0]);
  box.post(Verb::kStore, {}, &remote_[1], 7);
  for (int i = 0; i < 5; ++i) {
    box.mailbox.serve();
    turn();
  }
  ASSERT_TRUE(box.mailbox.idle());
  EXPECT_EQ(box.mailbox.code(), Code::kNotSupported);
  EXPECT_EQ(regions_[1].pins(), 0u);
}

// Of one that is complete the code is known here.
TEST_F(FrameAgentTest, AWordAfterARefusedPutIsNotEvenSent) {
  RemoteMemory stale = remote_[1];
  stale.grant.generation += 1;
  Box box(*agents_[0]);
  box.post(Verb::kPut, {{local_.data(), &stale, 0, 100}});
  box.mailbox.serve();
  turn(3);
  ASSERT_TRUE(box.mailbox.idle());
  const uint64_t written = wire_.written(0);
  MailboxEntry* const word = box.mailbox.claim();
  word->verb = Verb::kAdd64;
  word->remote = &remote_[1];
  word->operand = 5;
  word->onlyAfterPrevious = true;
  box.mailbox.ring();
  box.mailbox.serve();
  EXPECT_TRUE(box.mailbox.idle());
  EXPECT_EQ(wire_.written(0), written);
  EXPECT_EQ(loadWord(memory_[1].data(), Width::k64), 0u);
}

// Whoever polls looks for what it has brought, and tells those that sleep.
TEST_F(FrameAgentTest, WhatAPollBringsWakesNobodyElse) {
  Box box(*agents_[0]);
  turn();
  EXPECT_EQ(wakes_[1], 0);
  box.post(Verb::kPut, {{local_.data(), &remote_[1], 0, 100}});
  box.mailbox.serve();
  turn(3);
  EXPECT_EQ(wakes_[1], 0);  // nobody waits for bytes
  box.post(Verb::kAdd64, {}, &remote_[1], 3);
  box.mailbox.serve();
  turn(3);
  EXPECT_EQ(wakes_[1], 0);
}

// The poll that brings a word leaves the confirmation to the next one, or to a message.
TEST_F(FrameAgentTest, AConfirmationWaitsForCompany) {
  Box box(*agents_[0]);
  wire_.setMayOwe(1, true);
  box.post(Verb::kStore, {}, &remote_[1], 5);
  box.mailbox.serve();
  turn();
  EXPECT_TRUE(wire_.owes(1));
  EXPECT_EQ(wire_.written(1), 0u);
  turn();
  EXPECT_FALSE(wire_.owes(1));
  EXPECT_EQ(wire_.written(1), kFrameHeaderBytes);
  turn();
  EXPECT_TRUE(box.mailbox.idle());
}

TEST_F(FrameAgentTest, WhatMayLingerWaitsForCompany) {
  fillPattern(local_, 1);
  Box lingers(*agents_[0]);
  Box other(*agents_[0]);
  const auto post = [&](Box& box, bool mayLinger) {
    box.post(Verb::kPut, {{local_.data(), &remote_[1], 0, 100}}, nullptr, 0, mayLinger);
    box.post(Verb::kStore, {}, &remote_[1], 5, mayLinger);
    box.mailbox.serve();
  };
  constexpr uint64_t kMessage = 2 * kFrameHeaderBytes + 100 + kFrameTrailerBytes;
  post(lingers, true);
  EXPECT_EQ(wire_.written(0), kMessage) << "nobody attends, so nobody would send it";
  turn(2);
  ASSERT_TRUE(lingers.mailbox.idle());

  wire_.setMayOwe(0, true);
  post(lingers, true);
  EXPECT_EQ(wire_.written(0), kMessage);
  EXPECT_TRUE(wire_.owes(0));
  post(other, false);
  EXPECT_EQ(wire_.written(0), 3 * kMessage) << "together";
  EXPECT_FALSE(wire_.owes(0));
  turn(2);
  EXPECT_TRUE(lingers.mailbox.idle() && other.mailbox.idle());

  post(lingers, true);
  EXPECT_EQ(wire_.written(0), 3 * kMessage);
  turn();
  EXPECT_EQ(wire_.written(0), 4 * kMessage) << "the next poll";
  EXPECT_FALSE(wire_.owes(0));
  turn(2);
  EXPECT_TRUE(lingers.mailbox.idle());
}

TEST_F(FrameAgentTest, WhatLingersLeavesBeforeTheEnd) {
  Box lingers(*agents_[0]);
  wire_.setMayOwe(0, true);
  lingers.post(Verb::kAdd64, {}, &remote_[1], 5, true);
  lingers.mailbox.serve();
  ASSERT_EQ(wire_.written(0), 0u);
  agents_[0]->close(Code::kClosed);
  (void)agents_[1]->poll();
  EXPECT_EQ(memory_[1][0], std::byte{5});
}

// What does not fit goes out when there is room, which brings a poll about; nothing is owed then.
TEST_F(FrameAgentTest, AFullPipeOwesNothing) {
  Box lingers(*agents_[0]);
  wire_.setMayOwe(0, true);
  lingers.post(Verb::kStore, {}, &remote_[1], 5, true);
  lingers.mailbox.serve();
  ASSERT_TRUE(wire_.owes(0));
  wire_.freeze(0);
  turn();
  EXPECT_FALSE(wire_.owes(0));
  wire_.thaw(0);
  turn(3);
  EXPECT_TRUE(lingers.mailbox.idle());
}

TEST_F(FrameAgentTest, AnswersAreBatched) {
  std::vector<std::unique_ptr<Box>> boxes;
  for (int i = 0; i < 100; ++i) {
    boxes.push_back(std::make_unique<Box>(*agents_[0]));
    boxes.back()->post(Verb::kAdd64, {}, &remote_[1], 1);
    boxes.back()->mailbox.serve();
  }
  const uint64_t before = wire_.written(1);
  turn(2);
  for (auto& box : boxes) EXPECT_TRUE(box->mailbox.idle());
  EXPECT_EQ(wire_.written(1) - before, kFrameHeaderBytes);
}

// The wire ends after every possible number of bytes, in either direction: everything ends once,
// and nothing stays pinned.
TEST_F(FrameAgentTest, TheWireMayEndAnywhere) {
  constexpr size_t kSmall = 300;
  for (const auto& [direction, abandons] :
       {std::pair(0, false), std::pair(1, false), std::pair(0, true), std::pair(1, true)}) {
    size_t lost = 0;
    for (uint64_t cut = 0; cut < 1200; ++cut) {
      FakeWire wire(cut);
      wire.setPartial(97);
      FrameAgent here("here", wire.end(0), regions_[0], nullptr);
      FrameAgent there("there", wire.end(1), regions_[1], nullptr);
      wire.loseAfter(direction, cut);
      Box box(here);
      Box other(there);
      box.post(Verb::kPut, {{local_.data(), &remote_[1], 0, kSmall / 2},
                            {local_.data() + kSmall / 2, &remote_[1], kSmall, kSmall / 2}});
      box.post(Verb::kGet, {{local_.data(), &remote_[1], 0, kSmall / 2},
                            {local_.data(), &remote_[1], 0, 0},
                            {local_.data() + kSmall / 2, &remote_[1], kSmall / 2, kSmall / 2}});
      box.post(Verb::kAdd64, {}, &remote_[1], 1);
      other.post(Verb::kGet, {{local_.data(), &remote_[0], 0, kSmall}});
      for (int i = 0; i < 400 && !(box.mailbox.idle() && other.mailbox.idle()); ++i) {
        box.mailbox.serve();
        other.mailbox.serve();
        if (abandons && i == 5) box.mailbox.abort(Code::kCancelled);
        if (abandons && i == 7) other.mailbox.abort(Code::kCancelled);
        (void)here.poll();
        (void)there.poll();
      }
      ASSERT_TRUE(box.mailbox.idle() && other.mailbox.idle()) << "cut after " << cut;
      if (!here.health().isOk()) ++lost;
      ASSERT_TRUE(box.mailbox.code() == Code::kOk || box.mailbox.code() == Code::kPeerLost ||
                  (abandons && box.mailbox.code() == Code::kCancelled));
      here.close(Code::kClosed);
      there.close(Code::kClosed);
      ASSERT_EQ(regions_[0].pins() + regions_[1].pins(), 0u) << "cut after " << cut;
    }
    EXPECT_GT(lost, abandons ? 100u : 300u);
    EXPECT_LT(lost, 1200u) << "no run went through: cut later";
  }
}

// Blocks of every size, to places in any order, some of them next to each other and some beyond a
// frame, arrive where they belong, however the wire cuts the stream; and come back.
TEST_F(FrameAgentTest, ListsArriveWhereTheyBelong) {
  const std::vector<size_t> sizes = {1, 7, 48, 4096, 20000, kFrameMaxPayload, 3, 16384, 2, 5};
  std::vector<std::byte> from(1 << 20);
  std::vector<std::byte> to(2 << 20);
  RemoteMemory far;
  far.grant = regions_[1].add(to, Access::kRemoteReadWrite);
  fillPattern(from, 3);
  for (const size_t most : {0, 1000, 61}) {
    wire_.setPartial(most);
    std::vector<std::byte> expected(to.size());
    std::fill(to.begin(), to.end(), std::byte{});
    std::vector<Piece> pieces;
    for (size_t at = 0, i = 0; i < 200; ++i) {
      const size_t bytes = i < 20 || sizes[i % 10] < 100 ? sizes[i % 10] : 100;
      if (at + bytes > from.size()) break;
      const size_t place = to.size() - (i + 1) * 8 - 2 * at - bytes;  // from the end to the front
      if (place > to.size()) break;
      pieces.push_back({from.data() + at, &far, place, bytes});
      std::copy_n(from.begin() + static_cast<ptrdiff_t>(at), bytes,
                  expected.begin() + static_cast<ptrdiff_t>(place));
      at += bytes;
    }
    ASSERT_GT(pieces.size(), 2 * kFrameMaxBlocks);
    Box box(*agents_[0]);
    const auto move = [&](Verb verb) {
      box.post(verb, pieces);
      for (int i = 0; i < 100000 && !box.mailbox.idle(); ++i) {
        box.mailbox.serve();
        turn();
      }
      ASSERT_TRUE(box.mailbox.idle());
      EXPECT_EQ(box.mailbox.code(), Code::kOk);
      EXPECT_EQ(regions_[1].pins(), 0u);
    };
    move(Verb::kPut);
    EXPECT_TRUE(to == expected) << most;
    std::vector<std::byte> back(from.size());
    for (Piece& piece : pieces) piece.local = back.data() + (piece.local - from.data());
    move(Verb::kGet);
    const size_t used =
        static_cast<size_t>(pieces.back().local - back.data()) + pieces.back().bytes;
    EXPECT_TRUE(std::equal(back.begin(), back.begin() + static_cast<ptrdiff_t>(used), from.begin()))
        << most;
  }
}

TEST_F(FrameAgentTest, ALongListIsFewFrames) {
  constexpr size_t kBlock = 64;
  constexpr size_t kTable = kFrameHeaderBytes + kFrameMaxBlocks * kFrameBlockBytes;
  Box box(*agents_[0]);
  std::vector<Piece> pieces;
  for (size_t i = 0; i < 2 * kFrameMaxBlocks; ++i)
    pieces.push_back({local_.data(), &remote_[1], i * 2 * kBlock % (kBytes - kBlock), kBlock});
  box.post(Verb::kPut, pieces);
  box.mailbox.serve();
  EXPECT_EQ(wire_.written(0), 2 * (kTable + kFrameMaxBlocks * kBlock + kFrameTrailerBytes));
  turn(3);
  ASSERT_TRUE(box.mailbox.idle());

  const uint64_t asked = wire_.written(0);
  const uint64_t answered = wire_.written(1);
  box.post(Verb::kGet, pieces);
  box.mailbox.serve();
  EXPECT_EQ(wire_.written(0) - asked, 2 * kTable);
  turn(3);
  EXPECT_TRUE(box.mailbox.idle());
  EXPECT_EQ(wire_.written(1) - answered,
            2 * (kFrameHeaderBytes + kFrameMaxBlocks * kBlock + kFrameTrailerBytes));
}

// A block outside refuses its frame as a whole, and the rest of the entry.
TEST_F(FrameAgentTest, AListWithABlockOutsideIsRefused) {
  for (const uint64_t outside : {uint64_t{kBytes}, kBytes - 1, ~uint64_t{0} - 3}) {
    std::fill(memory_[1].begin(), memory_[1].end(), std::byte{});
    fillPattern(local_, 1);
    Box box(*agents_[0]);
    box.post(Verb::kPut,
             {{local_.data(), &remote_[1], 0, 8}, {local_.data(), &remote_[1], outside, 8}});
    box.post(Verb::kAdd64, {}, &remote_[1], 1);
    box.mailbox.serve();
    turn(5);
    ASSERT_TRUE(box.mailbox.idle());
    EXPECT_EQ(box.mailbox.code(), Code::kInvalidArgument);
    EXPECT_EQ(memory_[1][8], std::byte{});
    EXPECT_EQ(memory_[1][0], std::byte{1}) << "the next entry is not disturbed";
    box.mailbox.resetCode();
    box.post(Verb::kGet,
             {{local_.data(), &remote_[1], 0, 8}, {local_.data(), &remote_[1], outside, 8}});
    box.mailbox.serve();
    turn(5);
    ASSERT_TRUE(box.mailbox.idle());
    EXPECT_EQ(box.mailbox.code(), Code::kInvalidArgument);
    EXPECT_EQ(regions_[1].pins(), 0u);
    EXPECT_TRUE(agents_[1]->health().isOk());
  }
}

// A pipe that remembers where the bytes were read from, and takes everything.
class RecordingPipe final : public FramePipe {
 public:
  explicit RecordingPipe(std::vector<IoSlice>& slices) : slices_(slices) {}
  bool writable() override { return true; }
  Result<size_t> write(const PipeSlices& from) override {
    size_t bytes = 0;
    for (const IoSlice& slice : from.slices) {
      slices_.push_back(slice);
      bytes += slice.bytes;
    }
    return bytes;
  }
  bool readable() override { return false; }
  Result<size_t> read(const PipeSlices&) override { return size_t{0}; }
  void refresh() override {}
  void close() override {}

 private:
  std::vector<IoSlice>& slices_;
};

TEST_F(FrameAgentTest, PayloadsAreWrittenFromWhereTheyLie) {
  std::vector<IoSlice> slices;
  FrameAgent agent("recorded", std::make_unique<RecordingPipe>(slices), regions_[0], nullptr);
  Box box(agent);
  box.post(Verb::kPut, {all(1)});
  box.mailbox.serve();
  const std::byte* next = local_.data();
  for (const IoSlice& slice : slices) {
    if (slice.bytes == kFrameHeaderBytes || slice.bytes == kFrameTrailerBytes) continue;
    EXPECT_EQ(slice.base, next);
    EXPECT_LE(slice.bytes, kFrameMaxPayload);
    next += slice.bytes;
  }
  EXPECT_EQ(next, local_.data() + kBytes);
  agent.close(Code::kClosed);
  EXPECT_EQ(box.mailbox.code(), Code::kClosed);
}

TEST_F(FrameAgentTest, AHalfReceivedPutKeepsItsRegionPinnedUntilTheLinkEnds) {
  Box box(*agents_[0]);
  wire_.hold(0);
  box.post(Verb::kPut, {all(1)});
  box.mailbox.serve();
  wire_.release(0, kFrameHeaderBytes + 100);
  turn();
  EXPECT_EQ(regions_[1].pins(), 1u);
  agents_[1]->close(Code::kClosed);
  EXPECT_EQ(regions_[1].pins(), 0u);
  wire_.releaseAll(0);
  turn(3);
  EXPECT_EQ(box.mailbox.code(), Code::kPeerLost);
}

TEST_F(FrameAgentTest, AnEndedLinkIsSilent) {
  int lines = 0;
  setLogLevel(LogLevel::kDebug);  // that the peer has gone is no warning
  setLogSink([&](LogLevel, std::string_view, std::string_view) { ++lines; });
  agents_[1].reset();
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(agents_[0]->poll());
  EXPECT_EQ(lines, 1);
  setLogLevel(LogLevel::kWarn);
  EXPECT_EQ(agents_[0]->health().code(), Code::kPeerLost);
}

// How often a sender ends what it took. A mailbox cannot tell that a slot was ended twice.
TEST_F(FrameAgentTest, EveryWorkEndsOnce) {
  struct Idle final : Agent {
    Served serve(AgentWork&) override { return Served::kAgain; }
  } idle;
  Mailbox mailbox(idle);
  // A get with several requests under way, one that is still being cut, a put of two frames.
  RemoteMemory other;
  other.grant.allocation = remote_[1].grant.allocation + 1;
  std::vector<Piece> few(3, Piece{local_.data(), &remote_[1], 0, 10});
  few[1].remote = &other;  // neighbours of one region share a request
  std::vector<Piece> many;
  for (size_t i = 0; i < 2 * kFrameMaxRequests; ++i) many.push_back(few[i % 2]);
  MailboxEntry entries[3];
  entries[0].verb = Verb::kPut;
  entries[0].pieces = few.data();
  entries[0].pieceCount = 2;
  entries[1].verb = entries[2].verb = Verb::kGet;
  entries[1].pieces = few.data();
  entries[1].pieceCount = 3;
  entries[2].pieces = many.data();
  entries[2].pieceCount = static_cast<uint32_t>(many.size());
  AgentWork works[3];
  FrameSender sender;
  std::vector<IoSlice> slices;
  RecordingPipe pipe(slices);
  FrameEffects effects;
  for (int i = 0; i < 3; ++i) {
    works[i].entry = &entries[i];
    works[i].mailbox = &mailbox;
    ASSERT_TRUE(sender.mayBegin(works[i]));
    sender.begin(works[i]);
    ASSERT_TRUE(sender.pump(pipe, 1 << 30, effects).isOk());
  }
  EXPECT_TRUE(sender.busy());
  EXPECT_TRUE(effects.finished.empty());
  sender.endAll(Code::kPeerLost, effects);
  ASSERT_EQ(effects.finished.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(effects.finished[i].first, &works[i]);
    EXPECT_EQ(effects.finished[i].second, Code::kPeerLost);
  }
  EXPECT_FALSE(sender.busy());
}

}  // namespace
}  // namespace peerlane
