// SPDX-License-Identifier: Apache-2.0
//
// The frame agent against a correct peer on a faulty wire. What a hostile peer can do is in
// frame_violation_test.cc, what every link does in the contract suite.
#include "peerlane/transport/frame_agent.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "peerlane/core/log_level.h"
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
    setLogSink([](LogLevel, std::string_view, std::string_view) {});  // ends are its subject
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

  ~FrameAgentTest() override { setLogSink({}); }

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
            uint64_t operand = 0) {
    pieces.push_back(std::move(list));
    MailboxEntry* entry = mailbox.claim();
    ASSERT_NE(entry, nullptr);
    entry->verb = verb;
    entry->pieces = pieces.back().data();
    entry->pieceCount = static_cast<uint32_t>(pieces.back().size());
    entry->remote = word;
    entry->operand = operand;
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
    far_.grant = regions_[1].add(there_, Access::kRemoteReadWrite);
  }
  // Whose bytes they are.
  int sender() const { return GetParam() == Verb::kPut ? 0 : 1; }
  std::vector<Piece> list(size_t pieceBytes) {
    std::vector<Piece> pieces;
    for (size_t at = 0; at < kMuch; at += pieceBytes)
      pieces.push_back({here_.data() + at, &far_, at, pieceBytes});
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

TEST_F(FrameAgentTest, AWordWakesTheSideItIsWrittenTo) {
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
  EXPECT_GT(wakes_[1], 0);
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
      box.post(Verb::kPut, {{local_.data(), &remote_[1], 0, kSmall}});
      box.post(Verb::kGet, {{local_.data(), &remote_[1], 0, kSmall}});
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

// A pipe that remembers where the bytes were read from, and takes everything.
class RecordingPipe final : public FramePipe {
 public:
  explicit RecordingPipe(std::vector<IoSlice>& slices) : slices_(slices) {}
  bool writable() override { return true; }
  Result<size_t> write(std::span<const IoSlice> slices) override {
    size_t bytes = 0;
    for (const IoSlice& slice : slices) {
      slices_.push_back(slice);
      bytes += slice.bytes;
    }
    return bytes;
  }
  bool readable() override { return false; }
  Result<size_t> read(std::span<const IoSlice>) override { return size_t{0}; }
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
    if (slice.bytes == kFrameHeaderBytes) continue;
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
  const std::vector<Piece> few(3, Piece{local_.data(), &remote_[1], 0, 10});
  const std::vector<Piece> many(2 * kFrameMaxRequests, few.front());
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
