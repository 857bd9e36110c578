// SPDX-License-Identifier: Apache-2.0
//
// What each op does when the CPU executor runs it, and how a run ends: by its last op, by cancel at
// any op, by poison, by an agent's failure, and never before an agent let go of its memory.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "peerlane/program/cpu/cpu_program.h"
#include "peerlane/program/model/bell.h"
#include "tests/program/model/scripted_agent.h"

namespace peerlane::cpu {
namespace {

using Answer = ScriptedAgent::Answer;
constexpr uint64_t kAll = UINT64_MAX;

class CpuRunTest : public testing::Test {
 protected:
  CpuRunTest() {
    remote_.linkKey = std::bit_cast<uint64_t>(far_.data());
    remote_.grant.bytes = far_.size();
    for (size_t i = 0; i < source_.size(); ++i) source_[i] = static_cast<std::byte>(i * 7 + 1);
  }
  BoundTarget near() { return {.address = near_.data(), .bytes = near_.size()}; }
  BoundTarget source() { return {.address = source_.data(), .bytes = source_.size()}; }
  BoundTarget words() {
    return {.address = reinterpret_cast<std::byte*>(words_.data()), .bytes = sizeof(words_)};
  }
  BoundTarget agent() { return {.bytes = far_.size(), .remote = &remote_}; }

  void prepare(Program program, std::vector<BoundTarget> targets) {
    const Status status = prepared_.prepare(std::move(program), {std::move(targets), &mailbox_});
    ASSERT_TRUE(status.isOk()) << status.toString();
  }
  void start(std::vector<uint64_t> cursors = {}, Indices indices = {}, LateBinder* late = nullptr) {
    run_.start(prepared_, cursors, indices, late);
  }
  Step runAll(std::vector<uint64_t> cursors = {}) {
    start(std::move(cursors));
    return run_.advance(kAll);
  }
  void expectEnded(Code code = Code::kOk) {
    EXPECT_TRUE(run_.ended());
    EXPECT_EQ(run_.code(), code) << codeName(run_.code());
    EXPECT_EQ(run_.advance(kAll), Step::kEnded);
  }

  std::array<std::byte, 4096> near_{};
  std::array<std::byte, 4096> source_{};
  std::array<std::byte, 4096> far_{};
  alignas(64) std::array<uint64_t, 64> words_{};
  RemoteMemory remote_;
  ScriptedAgent scripted_;
  Mailbox mailbox_{scripted_};
  CpuProgram prepared_;
  CpuRun run_;
};

TEST_F(CpuRunTest, CopiesExactlyTheRange) {
  ProgramBuilder builder("copy");
  const TargetId to = builder.local("to");
  const TargetId from = builder.local("from");
  builder.copy({.target = to, .offset = 100}, {.target = from, .offset = 7}, 50);
  prepare(builder.build(), {near(), source()});
  EXPECT_EQ(runAll(), Step::kEnded);
  expectEnded();
  EXPECT_EQ(run_.bytesMoved(), 50u);
  for (size_t i = 0; i < near_.size(); ++i)
    EXPECT_EQ(near_[i], i >= 100 && i < 150 ? source_[i - 93] : std::byte{0}) << i;
}

TEST_F(CpuRunTest, ABudgetCutsCopiesAnywhereAndGoesOn) {
  ProgramBuilder builder("list");
  const TargetId to = builder.local("to");
  const TargetId from = builder.local("from");
  builder.copyList({.segments = {{to, from, 0, 0, 100}, {to, from, 200, 300, 33}}});
  prepare(builder.build(), {near(), source()});
  start();
  for (int i = 0; i < 18; ++i) {
    EXPECT_EQ(run_.advance(7), Step::kMore) << i;
    EXPECT_EQ(run_.bytesMoved(), 7u * (static_cast<uint64_t>(i) + 1));
  }
  EXPECT_EQ(run_.advance(7), Step::kEnded);
  expectEnded();
  EXPECT_TRUE(std::equal(near_.begin(), near_.begin() + 100, source_.begin()));
  EXPECT_TRUE(std::equal(near_.begin() + 200, near_.begin() + 233, source_.begin() + 300));
  EXPECT_EQ(near_[233], std::byte{0});
}

TEST_F(CpuRunTest, StoresAndAddsWords) {
  ProgramBuilder builder("words");
  const CursorId cursor = builder.cursor(1);
  const TargetId word = builder.local("word");
  builder.store({.target = word, .offset = 0}, {.cursor = cursor, .delta = 5}, Order::kRelease)
      .store({.target = word, .offset = 8}, {.delta = -1}, Order::kRelaxed)
      .store({.target = word, .offset = 16}, {.delta = -1}, Order::kRelaxed, Width::k32)
      .add64({.target = word, .offset = 24}, {.delta = 9}, Order::kRelease)
      .fence()
      .flush(word);
  prepare(builder.build(), {words()});
  words_[3] = 100;
  EXPECT_EQ(runAll({1000}), Step::kEnded);
  expectEnded();
  EXPECT_EQ(words_[0], 1005u);
  EXPECT_EQ(words_[1], UINT64_MAX);
  EXPECT_EQ(words_[2], 0xffffffffu) << "a 32-bit store touches 4 bytes";
  EXPECT_EQ(words_[3], 109u);
}

struct WaitRow {
  Compare compare;
  Width width;
  uint64_t word;
  uint64_t operand;
  bool satisfied;
};

class CpuWait : public CpuRunTest, public testing::WithParamInterface<WaitRow> {};

TEST_P(CpuWait, HoldsExactlyWhenTheComparisonSays) {
  ProgramBuilder builder("wait");
  builder.wait({.target = builder.local("word")},
               {.delta = static_cast<int64_t>(GetParam().operand)}, GetParam().compare,
               GetParam().width);
  prepare(builder.build(), {words()});
  words_[0] = GetParam().word;
  EXPECT_EQ(runAll(), GetParam().satisfied ? Step::kEnded : Step::kBlocked);
  if (!GetParam().satisfied) {
    const std::byte* word = nullptr;
    uint64_t operand = 0;
    ASSERT_TRUE(run_.awaited(word, operand));
    EXPECT_EQ(word, reinterpret_cast<const std::byte*>(words_.data()));
    EXPECT_EQ(operand, GetParam().operand);
    run_.cancel(Code::kCancelled);
    (void)run_.advance(kAll);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Comparisons, CpuWait,
    testing::Values(WaitRow{Compare::kGreaterEqual, Width::k64, 5, 5, true},
                    WaitRow{Compare::kGreaterEqual, Width::k64, 6, 5, true},
                    WaitRow{Compare::kGreaterEqual, Width::k64, 4, 5, false},
                    // Signed difference: a counter that wrapped is still ahead.
                    WaitRow{Compare::kGreaterEqual, Width::k64, 2, UINT64_MAX, true},
                    WaitRow{Compare::kGreaterEqual, Width::k32, 4, 5, false},
                    WaitRow{Compare::kGreaterEqual, Width::k32, 5, 5, true},
                    WaitRow{Compare::kGreaterEqual, Width::k32, 2, 0xffffffff, true},
                    WaitRow{Compare::kGreaterEqual, Width::k32, 0xffff'ffff'0000'0004, 5, false},
                    WaitRow{Compare::kEqual, Width::k64, 5, 5, true},
                    WaitRow{Compare::kEqual, Width::k64, 6, 5, false},
                    WaitRow{Compare::kEqual, Width::k32, 0x1'0000'0005, 5, true},
                    WaitRow{Compare::kAnd, Width::k64, 6, 2, true},
                    WaitRow{Compare::kAnd, Width::k64, 4, 2, false},
                    WaitRow{Compare::kNor, Width::k64, UINT64_MAX - 1, 0, true},
                    WaitRow{Compare::kNor, Width::k64, UINT64_MAX - 1, 1, false},
                    WaitRow{Compare::kNor, Width::k32, 0xfffffffe, 0, true},
                    WaitRow{Compare::kNor, Width::k32, 0xfffffffe, 1, false}));

TEST_F(CpuRunTest, AWaitGoesOnWhenTheWordComes) {
  ProgramBuilder builder("wait");
  const CursorId cursor = builder.cursor(1);
  const TargetId word = builder.local("word");
  builder.wait({.target = word}, {.cursor = cursor, .delta = 1})
      .store({.target = word, .offset = 8}, {.delta = 1}, Order::kRelease);
  prepare(builder.build(), {words()});
  EXPECT_EQ(runAll({41}), Step::kBlocked);
  EXPECT_EQ(run_.opIndex(), 0u);
  words_[0] = 41;
  EXPECT_EQ(run_.advance(kAll), Step::kBlocked);
  EXPECT_EQ(words_[1], 0u);
  words_[0] = 42;
  EXPECT_EQ(run_.advance(kAll), Step::kEnded);
  expectEnded();
  EXPECT_EQ(words_[1], 1u);
  const std::byte* at = nullptr;
  uint64_t operand = 0;
  EXPECT_FALSE(run_.awaited(at, operand));
}

TEST_F(CpuRunTest, PoisonReleasesAWaitAndNothingBehindItRuns) {
  ProgramBuilder builder("wait");
  const TargetId word = builder.local("word");
  builder.wait({.target = word}, {.delta = 1})
      .store({.target = word, .offset = 8}, {.delta = 1}, Order::kRelease);
  prepare(builder.build(), {words()});
  words_[0] = kPoison;
  EXPECT_EQ(runAll(), Step::kEnded);
  expectEnded(Code::kPeerLost);
  EXPECT_EQ(words_[1], 0u);
  // A counter just below is a counter.
  words_[0] = kPoison - 1;
  EXPECT_EQ(runAll(), Step::kEnded);
  expectEnded();
  EXPECT_EQ(words_[1], 1u);
  // Somebody may have added to the poison.
  words_[0] = kPoison + 12345;
  EXPECT_EQ(runAll(), Step::kEnded);
  expectEnded(Code::kPeerLost);
}

TEST_F(CpuRunTest, RingPlacesFollowTheCursor) {
  ProgramBuilder builder("ring");
  const CursorId cursor = builder.cursor(1);
  const TargetId ring =
      builder.target({.name = "ring", .cursor = cursor, .slots = 3, .strideBytes = 16});
  const TargetId from = builder.local("from");
  builder.copy({.target = ring, .offset = 8}, {.target = from}, 8)
      .store({.target = ring, .slotDelta = 1}, {.cursor = cursor, .delta = 0}, Order::kRelease)
      .store({.target = ring, .slotDelta = -1, .offset = 0}, {.delta = 77}, Order::kRelease);
  prepare(builder.build(), {words(), source()});
  uint64_t expected = 0;
  std::memcpy(&expected, source_.data(), 8);
  for (const uint64_t number : {uint64_t{4}, uint64_t{9}, uint64_t{11}, uint64_t{1} << 40}) {
    words_.fill(0);
    EXPECT_EQ(runAll({number}), Step::kEnded);
    EXPECT_EQ(words_[number % 3 * 2 + 1], expected) << number;
    EXPECT_EQ(words_[(number + 1) % 3 * 2], number);
    EXPECT_EQ(words_[(number - 1) % 3 * 2], 77u);
    EXPECT_EQ(std::count(words_.begin(), words_.end(), 0u), 61);
  }
}

class OneBinder : public LateBinder {
 public:
  Status bind(TargetId target, BoundTarget& out) override {
    ++calls;
    asked = target;
    if (!answer.isOk()) return answer;
    out = bound;
    return Status::ok();
  }
  BoundTarget bound;
  Status answer;
  TargetId asked = kNoTarget;
  int calls = 0;
};

class CpuLate : public CpuRunTest {
 protected:
  CpuLate() {
    ProgramBuilder builder("late");
    const TargetId word = builder.local("word");
    const TargetId late = builder.target({.name = "late", .late = true});
    const TargetId from = builder.local("from");
    builder.wait({.target = word}, {.delta = 1})
        .copy({.target = late, .offset = 0}, {.target = from}, 64)
        .copy({.target = late, .offset = 64}, {.target = from, .offset = 64}, 64)
        .store({.target = word, .offset = 8}, {.delta = 1}, Order::kRelease);
    program_ = builder.build();
  }
  Program program_;
  OneBinder binder_;
};

TEST_F(CpuLate, IsBoundOnceWhenFirstReached) {
  prepare(program_, {words(), {}, source()});
  binder_.bound = near();
  start({}, {}, &binder_);
  EXPECT_EQ(run_.advance(kAll), Step::kBlocked);
  EXPECT_EQ(binder_.calls, 0) << "not before the wait was satisfied";
  words_[0] = 1;
  EXPECT_EQ(run_.advance(kAll), Step::kEnded);
  EXPECT_EQ(binder_.calls, 1);
  EXPECT_EQ(binder_.asked, 1);
  EXPECT_TRUE(std::equal(near_.begin(), near_.begin() + 128, source_.begin()));
  // The next run binds anew.
  start({}, {}, &binder_);
  EXPECT_EQ(run_.advance(kAll), Step::kEnded);
  EXPECT_EQ(binder_.calls, 2);
}

TEST_F(CpuLate, BoundToFewerBytesMovesOnlyThose) {
  prepare(program_, {words(), {}, source()});
  words_[0] = 1;
  binder_.bound = {.address = near_.data(), .bytes = 0};
  start({}, {}, &binder_);
  EXPECT_EQ(run_.advance(kAll), Step::kEnded);
  expectEnded();
  EXPECT_EQ(near_[0], std::byte{0});
  EXPECT_EQ(words_[1], 1u) << "the ops behind it run";
}

// Memory behind a file that may be cut: as any other, in slices, while it is there; a run that
// finds it cut ends, and the process goes on.
TEST_F(CpuLate, BoundToMemoryThatMayBeCutEndsWithIt) {
  const auto bytes = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const int file = ::memfd_create("cut", MFD_CLOEXEC);
  ASSERT_EQ(::ftruncate(file, static_cast<off_t>(bytes)), 0);
  void* const mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  binder_.bound = {.address = static_cast<std::byte*>(mapped), .bytes = bytes, .mayBeCut = true};
  prepare(program_, {words(), {}, source()});
  words_[0] = 1;
  start({}, {}, &binder_);
  EXPECT_EQ(run_.advance(50), Step::kMore);
  EXPECT_EQ(run_.bytesMoved(), 50u);
  EXPECT_EQ(run_.advance(50), Step::kMore);
  EXPECT_EQ(run_.bytesMoved(), 100u);
  EXPECT_EQ(run_.advance(kAll), Step::kEnded);
  expectEnded();
  EXPECT_EQ(run_.bytesMoved(), 128u);
  EXPECT_EQ(std::memcmp(mapped, source_.data(), 128), 0);
  words_[1] = 0;
  ASSERT_EQ(::ftruncate(file, 0), 0);
  start({}, {}, &binder_);
  EXPECT_EQ(run_.advance(kAll), Step::kEnded);
  expectEnded(Code::kRevoked);
  EXPECT_EQ(words_[1], 0u) << "nobody is told that it came";
  ::munmap(mapped, bytes);
  ::close(file);
}

// A copy at an offset of a late target moves what is left behind that offset, never more.
TEST_F(CpuLate, NothingIsWrittenPastWhatWasBound) {
  prepare(program_, {words(), {}, source()});
  words_[0] = 1;
  binder_.bound = {.address = near_.data(), .bytes = 100};
  start({}, {}, &binder_);
  EXPECT_EQ(run_.advance(kAll), Step::kEnded);
  EXPECT_TRUE(std::equal(near_.begin(), near_.begin() + 100, source_.begin()));
  for (size_t i = 100; i < 256; ++i) ASSERT_EQ(near_[i], std::byte{0}) << i;
  EXPECT_EQ(run_.bytesMoved(), 100u);
}

TEST_F(CpuLate, ARefusalEndsTheRunWithItsStatus) {
  prepare(program_, {words(), {}, source()});
  words_[0] = 1;
  binder_.answer = Status(Code::kSizeMismatch, "too long");
  start({}, {}, &binder_);
  EXPECT_EQ(run_.advance(kAll), Step::kEnded);
  expectEnded(Code::kSizeMismatch);
  EXPECT_EQ(words_[1], 0u);
}

TEST_F(CpuLate, NobodyToBindIsAnError) {
  prepare(program_, {words(), {}, source()});
  words_[0] = 1;
  start();
  EXPECT_EQ(run_.advance(kAll), Step::kEnded);
  expectEnded(Code::kInternal);
}

TEST_F(CpuLate, MayTurnOutToBeReachedByAnAgent) {
  prepare(program_, {words(), {}, source()});
  words_[0] = 1;
  binder_.bound = agent();
  start({}, {}, &binder_);
  EXPECT_EQ(run_.advance(kAll), Step::kEnded);
  expectEnded();
  EXPECT_TRUE(std::equal(far_.begin(), far_.begin() + 128, source_.begin()));
  EXPECT_EQ(words_[1], 1u);
}

class CpuIndexed : public CpuRunTest {
 protected:
  Program indexed(uint64_t toStride, uint64_t fromStride, TargetId to = 0, TargetId from = 1) {
    ProgramBuilder builder("indexed");
    builder.local("a");
    builder.local("b");
    builder.copyList({.kind = CopyLayout::Kind::kIndexed,
                      .first = {to, from, 128, 64, 16},
                      .toStride = toStride,
                      .fromStride = fromStride,
                      .count = 32,
                      .toLimit = 60,
                      .fromLimit = 60});
    return builder.build();
  }
  void expectMoved(std::span<const std::byte> to, std::span<const std::byte> from,
                   uint64_t toStride, uint64_t fromStride, const std::vector<uint32_t>& toIndex,
                   const std::vector<uint32_t>& fromIndex) {
    std::vector<std::byte> expected(to.size());
    for (size_t i = 0; i < toIndex.size(); ++i)
      std::memcpy(expected.data() + 128 + toIndex[i] * toStride,
                  from.data() + 64 + fromIndex[i] * fromStride, 16);
    EXPECT_TRUE(std::equal(to.begin(), to.end(), expected.begin()));
  }
};

TEST_F(CpuIndexed, MovesTheNamedBlocksAndNoOther) {
  const std::vector<uint32_t> to = {3, 4, 5, 40, 1, 0, 59};
  const std::vector<uint32_t> from = {7, 8, 9, 10, 59, 0, 1};
  for (const uint64_t toStride : {16, 32}) {
    for (const uint64_t fromStride : {16, 48}) {
      for (const uint64_t budget : {uint64_t{1}, uint64_t{16}, uint64_t{40}, kAll}) {
        near_.fill(std::byte{0});
        prepare(indexed(toStride, fromStride), {near(), source()});
        start({}, {to, from});
        while (run_.advance(budget) == Step::kMore) {
        }
        expectEnded();
        EXPECT_EQ(run_.bytesMoved(), 7 * 16u);
        expectMoved(near_, source_, toStride, fromStride, to, from);
      }
    }
  }
}

TEST_F(CpuIndexed, AnAgentGetsAdjacentRunsAsOnePiece) {
  // 3,4,5 against 7,8,9 touch on both sides; 40 against 10 does not.
  const std::vector<uint32_t> to = {3, 4, 5, 40};
  const std::vector<uint32_t> from = {7, 8, 9, 10};
  prepare(indexed(16, 16), {agent(), source()});
  struct Counting final : Agent {
    explicit Counting(ScriptedAgent& agent) : inner(agent) {}
    Served serve(AgentWork& work) override {
      pieces.push_back(work.entry->pieceCount);
      bytes = work.entry->pieces[0].bytes;
      return inner.serve(work);
    }
    ScriptedAgent& inner;
    std::vector<uint32_t> pieces;
    uint64_t bytes = 0;
  } counting(scripted_);
  Mailbox mailbox(counting);
  ASSERT_TRUE(prepared_.prepare(indexed(16, 16), {{agent(), source()}, &mailbox}).isOk());
  start({}, {to, from});
  EXPECT_EQ(run_.advance(kAll), Step::kEnded);
  EXPECT_EQ(counting.pieces, std::vector<uint32_t>{2});
  EXPECT_EQ(counting.bytes, 48u);
  expectMoved(far_, source_, 16, 16, to, from);
}

TEST_F(CpuIndexed, GetsFromAnAgentToo) {
  std::copy(source_.begin(), source_.end(), far_.begin());
  const std::vector<uint32_t> to = {0, 9, 8};
  const std::vector<uint32_t> from = {5, 6, 0};
  prepare(indexed(32, 16), {near(), agent()});
  start({}, {to, from});
  EXPECT_EQ(run_.advance(kAll), Step::kEnded);
  expectMoved(near_, far_, 32, 16, to, from);
}

class CpuAgent : public CpuRunTest {
 protected:
  // put 64 bytes, add 1, then a store to a word of this side.
  Program putAddStore() {
    ProgramBuilder builder("put-add-store");
    const TargetId far = builder.remote("far");
    const TargetId from = builder.local("from");
    const TargetId word = builder.local("word");
    builder.copy({.target = far, .offset = 128}, {.target = from}, 64)
        .add64({.target = far, .offset = 8}, {.delta = 3}, Order::kRelease)
        .store({.target = word}, {.delta = 1}, Order::kRelease);
    return builder.build();
  }
  uint64_t farWord(size_t index) const {
    uint64_t word = 0;
    std::memcpy(&word, far_.data() + index * 8, 8);
    return word;
  }
};

TEST_F(CpuAgent, EveryOpReachesTheAgentInOrder) {
  ProgramBuilder builder("all");
  const TargetId far = builder.remote("far");
  const TargetId from = builder.local("from");
  builder.copy({.target = far, .offset = 128}, {.target = from}, 64)
      .copyList({.segments = {{far, from, 256, 0, 8}, {far, from, 300, 8, 8}}})
      .store({.target = far}, {.delta = 9}, Order::kRelease)
      .store({.target = far, .offset = 16}, {.delta = 10}, Order::kRelaxed, Width::k32)
      .fence()
      .add64({.target = far, .offset = 8}, {.delta = 3}, Order::kRelease)
      .flush(far)
      .copy({.target = from, .offset = 1000}, {.target = far, .offset = 128}, 64);
  prepare(builder.build(), {agent(), source()});
  EXPECT_EQ(runAll(), Step::kEnded);
  expectEnded();
  const std::vector<Verb> expected = {Verb::kPut,   Verb::kPut,   Verb::kStore,
                                      Verb::kStore, Verb::kAdd64, Verb::kGet};
  std::vector<Verb> seen = scripted_.verbs();
  std::erase(seen, Verb::kFlush);  // an agent's end is a confirmation: a flush may be free
  EXPECT_EQ(seen, expected);
  EXPECT_TRUE(std::equal(far_.begin() + 128, far_.begin() + 192, source_.begin()));
  EXPECT_EQ(farWord(0), 9u);
  EXPECT_EQ(farWord(1), 3u);
  EXPECT_EQ(farWord(2), 10u);
  EXPECT_TRUE(std::equal(source_.begin() + 1000, source_.begin() + 1064, source_.begin()));
}

TEST_F(CpuAgent, APlainStoreWaitsUntilTheAgentIsDone) {
  scripted_.sendAll(true);
  prepare(putAddStore(), {agent(), source(), words()});
  EXPECT_EQ(runAll(), Step::kBlocked);
  EXPECT_EQ(words_[0], 0u);
  ASSERT_TRUE(scripted_.finishOne());
  EXPECT_EQ(run_.advance(kAll), Step::kBlocked);
  EXPECT_EQ(words_[0], 0u) << "the second entry is still out";
  ASSERT_TRUE(scripted_.finishOne());
  EXPECT_EQ(run_.advance(kAll), Step::kEnded);
  expectEnded();
  EXPECT_EQ(words_[0], 1u);
}

TEST_F(CpuAgent, AFailureStopsWhatFollowsAndIsForgottenByTheNextRun) {
  scripted_.failWith(Code::kPermissionDenied);
  prepare(putAddStore(), {agent(), source(), words()});
  EXPECT_EQ(runAll(), Step::kEnded);
  expectEnded(Code::kPermissionDenied);
  EXPECT_EQ(words_[0], 0u);
  scripted_.failWith(Code::kOk);
  EXPECT_EQ(runAll(), Step::kEnded);
  expectEnded();
  EXPECT_EQ(words_[0], 1u);
}

TEST_F(CpuAgent, ManyEntriesWaitForRoomInTheMailbox) {
  ProgramBuilder builder("many");
  const TargetId far = builder.remote("far");
  for (int i = 0; i < 50; ++i) builder.add64({.target = far}, {.delta = 1}, Order::kRelease);
  prepare(builder.build(), {agent()});
  scripted_.sendAll(true);
  start();
  int blocked = 0;
  while (run_.advance(kAll) != Step::kEnded) {
    ++blocked;
    ASSERT_TRUE(scripted_.finishOne());
  }
  EXPECT_GE(blocked, 42);
  expectEnded();
  EXPECT_EQ(farWord(0), 50u);
}

// Ring slots reached by an agent: the pieces live in the run until the agent is done with them.
TEST_F(CpuAgent, ManyCopiesToRingSlotsKeepTheirPieces) {
  ProgramBuilder builder("slots");
  const CursorId cursor = builder.cursor(1);
  const TargetId ring = builder.target(
      {.name = "ring", .side = Side::kRemote, .cursor = cursor, .slots = 32, .strideBytes = 64});
  const TargetId from = builder.local("from");
  for (int i = 0; i < 30; ++i)
    builder.copy({.target = ring, .slotDelta = i},
                 {.target = from, .offset = static_cast<uint64_t>(i) * 64}, 64);
  prepare(builder.build(), {agent(), source()});
  scripted_.sendAll(true);
  start({0});
  while (run_.advance(kAll) != Step::kEnded) {
    ASSERT_TRUE(scripted_.finishOne());
  }
  expectEnded();
  EXPECT_TRUE(std::equal(far_.begin(), far_.begin() + 30 * 64, source_.begin()));
}

TEST_F(CpuAgent, CancelWaitsForWhatIsOut) {
  remote_.refusesInOrder = true;  // else the word waits for the put's answer
  scripted_.sendAll(true);
  prepare(putAddStore(), {agent(), source(), words()});
  EXPECT_EQ(runAll(), Step::kBlocked);
  run_.cancel(Code::kCancelled);
  EXPECT_EQ(run_.advance(kAll), Step::kBlocked) << "the agent still reads our memory";
  EXPECT_FALSE(run_.ended());
  ASSERT_TRUE(scripted_.finishOne());
  EXPECT_EQ(run_.advance(kAll), Step::kBlocked);
  ASSERT_TRUE(scripted_.finishOne());
  EXPECT_EQ(run_.advance(kAll), Step::kEnded);
  expectEnded(Code::kCancelled);
  EXPECT_EQ(words_[0], 0u);
  // The mailbox serves the next run as if nothing had been.
  scripted_.sendAll(false);
  EXPECT_EQ(runAll(), Step::kEnded);
  expectEnded();
}

TEST_F(CpuAgent, CancelAbortsWhatTheAgentHasNotBegun) {
  scripted_.script({Answer::kAgain});
  prepare(putAddStore(), {agent(), source(), words()});
  EXPECT_EQ(runAll(), Step::kBlocked);
  scripted_.script({Answer::kAgain});
  run_.cancel(Code::kPeerLost);
  EXPECT_EQ(run_.advance(kAll), Step::kEnded);
  expectEnded(Code::kPeerLost);
  EXPECT_TRUE(scripted_.verbs().empty());
  EXPECT_EQ(far_[128], std::byte{0});
}

// Owners refuse some regions, and memory of the program may be gone when the agent reads it.
class RefusingAgent final : public Agent {
 public:
  explicit RefusingAgent(ScriptedAgent& inner) : inner_(inner) {}
  Served serve(AgentWork& work) override {
    const MailboxEntry& entry = *work.entry;
    Code code = Code::kOk;
    if (entry.onlyAfterPrevious) {
      EXPECT_TRUE(previousIsPut_) << "tied to an entry that is no put";
      code = previous_;
    }
    if (code == Code::kOk) code = codeOf(entry);
    previous_ = code;
    previousIsPut_ = entry.verb == Verb::kPut;
    if (entry.verb == Verb::kPut && code != Code::kOk) putFailed_ = true;
    if (entry.verb == Verb::kStore && code == Code::kOk && putFailed_) announcedTooMuch = true;
    if (entry.onlyAfterPrevious) ++tied;
    if (code == Code::kOk) return inner_.serve(work);
    work.code.store(code);
    return Served::kDone;
  }
  void refuse(const RemoteMemory& region) { refused_ = &region; }
  // The next run, with nothing refused and nothing gone.
  void forget() {
    gone = nullptr;
    refused_ = nullptr;
    previousIsPut_ = putFailed_ = false;
  }

  const std::byte* gone = nullptr;  // 64 bytes
  bool announcedTooMuch = false;
  int tied = 0;

 private:
  Code codeOf(const MailboxEntry& entry) const {
    if (entry.verb == Verb::kStore)
      return entry.remote == refused_ ? Code::kPermissionDenied : Code::kOk;
    for (const Piece& piece : std::span(entry.pieces, entry.pieceCount)) {
      if (piece.remote == refused_) return Code::kPermissionDenied;
      if (entry.verb == Verb::kPut && piece.local == gone) return Code::kRevoked;
    }
    return Code::kOk;
  }

  ScriptedAgent& inner_;
  const RemoteMemory* refused_ = nullptr;
  Code previous_ = Code::kOk;
  bool previousIsPut_ = false;
  bool putFailed_ = false;
};

class CpuAnnounce : public CpuRunTest {
 protected:
  CpuAnnounce() {
    other_ = remote_;
    other_.linkKey += far_.size() / 2;
    for (RemoteMemory* region : {&remote_, &other_}) {
      region->grant.bytes = far_.size() / 2;
      region->agent = &refusing_;
    }
  }
  enum class Kind : uint8_t { kPut, kPutList, kPutOurs, kPutBoth, kGet, kWord };
  struct Step {
    Kind kind = Kind::kPut;
    int region = 0;
    uint64_t block = 0;
  };
  // Runs the steps; every word is a release.
  void runSteps(const std::vector<Step>& steps) {
    ProgramBuilder builder("announce");
    const std::array<TargetId, 2> far = {builder.remote("far"), builder.remote("other")};
    const TargetId from = builder.local("from");
    const TargetId ours = builder.local("ours");
    const TargetId into = builder.local("into");
    for (const Step& step : steps) {
      const TargetId region = far[static_cast<size_t>(step.region)];
      const uint64_t at = 64 * step.block;
      switch (step.kind) {
        case Kind::kPut:
          builder.copy({.target = region, .offset = at}, {.target = from, .offset = at}, 64);
          break;
        case Kind::kPutOurs:
          builder.copy({.target = region, .offset = at}, {.target = ours, .offset = at}, 64);
          break;
        case Kind::kPutList:
          builder.copyList(
              {.segments = {{region, from, at, at, 64}, {region, ours, at + 64, at + 64, 64}}});
          break;
        case Kind::kPutBoth:
          builder.copyList(
              {.segments = {{region, ours, at, at, 64},
                            {far[static_cast<size_t>(1 - step.region)], ours, at, at, 64}}});
          break;
        case Kind::kGet:
          builder.copy({.target = into, .offset = at}, {.target = region, .offset = at}, 64);
          break;
        case Kind::kWord:
          builder.store({.target = region, .offset = 1024}, {.delta = 7}, Order::kRelease);
          break;
      }
    }
    const auto region = [](const RemoteMemory& memory) {
      return BoundTarget{.bytes = memory.grant.bytes, .remote = &memory};
    };
    const BoundTarget fromLibrary{.address = ours_.data(), .bytes = ours_.size(), .isOurs = true};
    const Status status = prepared_.prepare(
        builder.build(),
        {{region(remote_), region(other_), source(), fromLibrary, near()}, &mailbox_});
    ASSERT_TRUE(status.isOk()) << status.toString();
    start();
    while (run_.advance(kAll) != cpu::Step::kEnded) {
    }
  }

  std::array<std::byte, 1024> ours_{};
  RemoteMemory other_;
  RefusingAgent refusing_{scripted_};
  Mailbox mailbox_{refusing_};
};

TEST_F(CpuAnnounce, NoWordTellsOfBytesThatNeverLeft) {
  for (const bool heedsTies : {false, true}) {
    remote_.refusesInOrder = other_.refusesInOrder = heedsTies;
    for (const int region : {0, 1}) {
      refusing_.forget();
      refusing_.gone = source_.data();
      runSteps({{Kind::kPut, 0}, {Kind::kWord, region}});
      expectEnded(Code::kRevoked);
      EXPECT_FALSE(refusing_.announcedTooMuch) << region;
    }
  }
}

TEST_F(CpuAnnounce, AGetBetweenThePutAndTheWordChangesNothing) {
  remote_.refusesInOrder = other_.refusesInOrder = true;
  refusing_.gone = source_.data();
  runSteps({{Kind::kPut, 0}, {Kind::kGet, 0, 1}, {Kind::kWord, 0}});
  expectEnded(Code::kRevoked);
  EXPECT_FALSE(refusing_.announcedTooMuch);
}

// What the library itself puts cannot fail here: where the word is in the same region, the owner
// refuses both or none, and nothing waits.
TEST_F(CpuAnnounce, AWordBehindMemoryOfTheLibraryIsNotTied) {
  remote_.refusesInOrder = true;
  runSteps({{Kind::kPutOurs, 0}, {Kind::kPutOurs, 0, 1}, {Kind::kWord, 0}});
  expectEnded();
  EXPECT_EQ(refusing_.tied, 0);
  runSteps({{Kind::kPutOurs, 0}, {Kind::kPut, 0, 1}, {Kind::kWord, 0}});
  expectEnded();
  EXPECT_EQ(refusing_.tied, 1);
}

TEST_F(CpuAnnounce, OverAnyProgramAWordMeansThatAllBytesBeforeItCame) {
  std::mt19937 random(1);
  const auto below = [&random](uint32_t bound) { return static_cast<int>(random() % bound); };
  int announced = 0;
  for (int round = 0; round < 20000; ++round) {
    SCOPED_TRACE(round);
    refusing_.forget();
    if (below(4) == 0) refusing_.refuse(below(2) == 0 ? remote_ : other_);
    if (below(2) == 0) refusing_.gone = source_.data() + 64 * below(4);
    remote_.refusesInOrder = below(4) != 0;
    other_.refusesInOrder = below(4) != 0;
    std::vector<Step> steps(static_cast<size_t>(1 + below(12)));
    for (Step& step : steps)
      step = {static_cast<Kind>(below(6)), below(2), static_cast<uint64_t>(below(4))};
    std::ranges::fill(far_, std::byte{0});
    runSteps(steps);
    ASSERT_FALSE(refusing_.announcedTooMuch);
    announced += run_.code() == Code::kOk ? 1 : 0;
  }
  EXPECT_GT(announced, 1000) << "most rounds refuse: the test says little";
}

// Cancelled before op k, nothing of op k or later happened, and the run has ended.
TEST_F(CpuRunTest, CancelStopsAtEveryOp) {
  ProgramBuilder builder("steps");
  const TargetId word = builder.local("word");
  for (uint64_t i = 0; i < 6; ++i) {
    builder.wait({.target = word, .offset = 256 + i * 8}, {.delta = 1});
    builder.store({.target = word, .offset = i * 8}, {.delta = 1}, Order::kRelease);
  }
  for (size_t stop = 0; stop < 6; ++stop) {
    words_.fill(0);
    for (size_t i = 0; i < stop; ++i) words_[32 + i] = 1;
    prepare(ProgramBuilder(builder).build(), {words()});
    EXPECT_EQ(runAll(), Step::kBlocked);
    EXPECT_EQ(run_.opIndex(), 2 * stop);
    run_.cancel(Code::kCancelled);
    EXPECT_EQ(run_.advance(kAll), Step::kEnded);
    expectEnded(Code::kCancelled);
    words_[32 + stop] = 1;
    EXPECT_EQ(run_.advance(kAll), Step::kEnded);
    for (size_t i = 0; i < 6; ++i) EXPECT_EQ(words_[i], i < stop ? 1u : 0u) << i;
  }
}

TEST_F(CpuRunTest, CancelIsSeenBetweenSlicesOfACopy) {
  ProgramBuilder builder("copy");
  const TargetId to = builder.local("to");
  const TargetId from = builder.local("from");
  builder.copy({.target = to}, {.target = from}, 1000);
  prepare(builder.build(), {near(), source()});
  start();
  EXPECT_EQ(run_.advance(100), Step::kMore);
  run_.cancel(Code::kCancelled);
  EXPECT_EQ(run_.advance(100), Step::kEnded);
  expectEnded(Code::kCancelled);
  EXPECT_EQ(run_.bytesMoved(), 100u);
  EXPECT_EQ(near_[100], std::byte{0});
}

TEST_F(CpuRunTest, ACancelOfAnEarlierRunDoesNotReachTheNext) {
  ProgramBuilder builder("store");
  builder.store({.target = builder.local("word")}, {.delta = 1}, Order::kRelease);
  prepare(builder.build(), {words()});
  EXPECT_EQ(runAll(), Step::kEnded);
  run_.cancel(Code::kCancelled);
  EXPECT_EQ(runAll(), Step::kEnded);
  expectEnded();
}

TEST_F(CpuRunTest, AStoreWakesWhoeverSleepsOnTheWord) {
  auto bell = Bell::create().value();
  const Waker waker = bell->localWaker();
  BoundTarget target = words();
  target.waker = &waker;
  for (const bool add : {false, true}) {
    ProgramBuilder builder("ring-the-bell");
    const TargetId word = builder.local("word");
    if (add)
      builder.add64({.target = word}, {.delta = 1}, Order::kRelease);
    else
      builder.store({.target = word}, {.delta = 1}, Order::kRelaxed);
    prepare(builder.build(), {target});
    EXPECT_EQ(runAll(), Step::kEnded);
    pollfd wanted{bell->eventFd(), POLLIN, 0};
    EXPECT_EQ(poll(&wanted, 1, 0), 1);
    drainEventFd(bell->eventFd());
    bell->enter();
    EXPECT_EQ(runAll(), Step::kEnded);
    EXPECT_EQ(poll(&wanted, 1, 0), 0) << "nobody sleeps";
    bell->leave();
  }
}

// Release and acquire between two runs in two threads: the bytes are there when the word is.
TEST_F(CpuRunTest, BytesAreVisibleWithTheWord) {
  ProgramBuilder sender("sender");
  const CursorId cursor = sender.cursor(1);
  const TargetId to = sender.local("to");
  const TargetId from = sender.local("from");
  const TargetId word = sender.local("word");
  sender.wait({.target = word, .offset = 64}, {.cursor = cursor, .delta = 0})
      .copy({.target = to}, {.target = from}, 512)
      .store({.target = word}, {.cursor = cursor, .delta = 1}, Order::kRelease);
  ProgramBuilder receiver("receiver");
  const CursorId taken = receiver.cursor(1);
  const TargetId words = receiver.local("word");
  receiver.wait({.target = words}, {.cursor = taken, .delta = 1});
  std::array<uint64_t, 64> out{};
  std::array<uint64_t, 64> in{};
  CpuProgram sending;
  CpuProgram receiving;
  ASSERT_TRUE(sending
                  .prepare(sender.build(),
                           {{{.address = reinterpret_cast<std::byte*>(in.data()), .bytes = 512},
                             {.address = reinterpret_cast<std::byte*>(out.data()), .bytes = 512},
                             this->words()},
                            nullptr})
                  .isOk());
  ASSERT_TRUE(receiving.prepare(receiver.build(), {{this->words()}, nullptr}).isOk());
  constexpr uint64_t kRounds = 5000;
  std::thread thread([&] {
    CpuRun run;
    for (uint64_t i = 0; i < kRounds; ++i) {
      // The credit says that the receiver read the last ones; `out` is this thread's own.
      while (loadWord(reinterpret_cast<std::byte*>(&words_[8]), Width::k64) < i)
        std::this_thread::yield();
      out.fill(i);
      run.start(sending, {&i, 1});
      while (run.advance(kAll) != Step::kEnded) std::this_thread::yield();
    }
  });
  CpuRun run;
  bool right = true;
  for (uint64_t i = 0; i < kRounds; ++i) {
    run.start(receiving, {&i, 1});
    while (run.advance(kAll) != Step::kEnded) std::this_thread::yield();
    right =
        right && std::all_of(in.begin(), in.end(), [i](uint64_t word64) { return word64 == i; });
    storeWord(reinterpret_cast<std::byte*>(&words_[8]), Width::k64, i + 1,
              std::memory_order_release);
  }
  thread.join();
  EXPECT_TRUE(right);
}

}  // namespace
}  // namespace peerlane::cpu
