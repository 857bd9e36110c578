// SPDX-License-Identifier: Apache-2.0
//
// The code of a kernel (trigger_device.h), run by CPU threads, alone and as a block.
#include <array>
#include <cstring>
#include <thread>
#include <vector>

#include "peerlane/channel/trigger/trigger_device.h"
#include "peerlane/channel/trigger/triggered_queue.h"
#include "tests/channel/context_pair.h"

namespace peerlane {
namespace {

class TriggerKernelTest : public NearAndFarTest {
 protected:
  static constexpr uint64_t kBytes = 64 * 1024;
  TriggerKernelTest() : NearAndFarTest(kBytes) {}

  struct Listed {
    std::array<TriggerOp, 32> ops;
    TriggerList list;
  };
  static void resolve(const TriggeredQueue& queue, const TriggerProgram& program, Listed& into) {
    into.list = MUST(queue.resolve(program, into.ops));
  }
  template <typename Team>
  static TriggerOutcome run(const Team& team, const Listed& listed,
                            uint64_t boundNs = trigger::kForever) {
    return runTriggered(team, listed.ops.data(), listed.list.ops, listed.list.status, boundNs);
  }
};

INSTANTIATE_TEST_SUITE_P(Routes, TriggerKernelTest, everyRouteAndVerbs(), routeName);

// One side of a game of two kernels: each waits for the other's bytes, changes them and sends them
// back. The host prepares a few rounds and has no part in them.
class Player {
 public:
  static constexpr uint64_t kSize = 3000;
  static constexpr uint64_t kBatch = 8;  // peeks under way
  static constexpr uint32_t kThreads = 3;

  Player(const Peer& peer, TestMemory& own, const RemoteRegion& other, bool isFirst)
      : queue_(MUST(TriggeredQueue::create(peer))), own_(own), other_(other), isFirst_(isFirst) {}

  TriggeredQueue& queue() { return queue_; }

  void play(uint64_t batches) {
    for (uint64_t batch = 0; batch < batches; ++batch) {
      for (uint64_t i = 0; i < kBatch; ++i) prepare(i);
      port::Crew::Shared shared(kThreads);
      std::vector<std::thread> threads;
      for (uint32_t rank = 0; rank < kThreads; ++rank)
        threads.emplace_back([&, rank] { kernel(port::Crew(rank, shared)); });
      for (std::thread& thread : threads) thread.join();
      ASSERT_OK(queue_.status());
    }
  }

 private:
  struct Round {
    std::array<TriggerOp, 4> wait, send;
    TriggerList waitList, sendList;
  };
  void prepare(uint64_t i) {
    ++rounds_;
    // The second player answers; the first one begins with a message that nobody asked for.
    const uint64_t awaited = isFirst_ ? rounds_ - 1 : rounds_;
    ASSERT_OK(queue_.receive(0, awaited));
    const TriggerProgram arrival = MUST(queue_.commit());
    const Block block{&own_.region(), 0, &other_, 0, kSize};
    ASSERT_OK(queue_.put({&block, 1}));
    ASSERT_OK(queue_.signal(0));
    const TriggerProgram send = MUST(queue_.commit());
    const TriggerProgram peek = MUST(queue_.peek(arrival.id.number));
    Round& round = round_[i];
    round.waitList = MUST(queue_.resolve(peek, round.wait));
    round.sendList = MUST(queue_.resolve(send, round.send));
    ASSERT_OK(queue_.enqueueCommit(arrival.id));
    ASSERT_OK(queue_.enqueueCommit(send.id));
    ASSERT_OK(queue_.enqueuePeek(peek.id));
  }
  void kernel(const port::Crew& crew) {
    for (const Round& round : round_) {
      ASSERT_EQ(runTriggered(crew, round.wait.data(), round.waitList.ops, round.waitList.status),
                TriggerOutcome::kOk);
      for (uint64_t i = crew.rank(); i < kSize; i += kThreads)
        own_.data()[i] = static_cast<std::byte>(static_cast<uint8_t>(own_.data()[i]) + 1);
      ASSERT_EQ(runTriggered(crew, round.send.data(), round.sendList.ops, round.sendList.status),
                TriggerOutcome::kOk);
    }
  }

  TriggeredQueue queue_;
  TestMemory& own_;
  const RemoteRegion& other_;
  const bool isFirst_;
  uint64_t rounds_ = 0;
  std::array<Round, kBatch> round_;
};

TEST_P(TriggerKernelTest, TwoKernelsPlayWithoutTheHost) {
  constexpr uint64_t kBatches = 5;
  const RemoteRegion back = near_->importedBy(pair_.toA);
  Player a(pair_.toB, *near_, remote_, true), b(pair_.toA, *far_, back, false);
  std::thread other([&] { b.play(kBatches); });
  a.play(kBatches);
  other.join();
  // The last message is b's.
  EXPECT_OK(MUST(Signal::create(pair_.toB, 0)).wait(kBatches * Player::kBatch, kSoon));
  for (uint64_t i = 0; i < Player::kSize; ++i) {
    near_->shadow()[i] =
        static_cast<std::byte>(static_cast<uint8_t>(near_->shadow()[i]) + 2 * 5 * 8);
    far_->shadow()[i] = near_->shadow()[i];
  }
  EXPECT_TRUE(near_->isAsExpected());
  EXPECT_TRUE(far_->isAsExpected());
}

TEST_P(TriggerKernelTest, AWaitEndsWithItsBoundOrWithTheQueue) {
  TriggeredQueue queue = MUST(TriggeredQueue::create(pair_.toB));
  ASSERT_OK(queue.receive(1, 1));
  const TriggerProgram commit = MUST(queue.commit());
  const TriggerProgram peek = MUST(queue.peek(commit.id.number));
  Listed listed;
  EXPECT_EQ(queue.resolve(peek, std::span(listed.ops).first(1)).status().code(),
            Code::kInvalidArgument);
  resolve(queue, peek, listed);
  ASSERT_OK(queue.enqueueCommit(commit.id));
  ASSERT_OK(queue.enqueuePeek(peek.id));
  const port::ThisThread thread;
  EXPECT_EQ(run(thread, listed, 1000), TriggerOutcome::kTimeout);
  std::thread waiter([&] { EXPECT_EQ(run(thread, listed), TriggerOutcome::kEnded); });
  queue.cancel();
  waiter.join();
}

// What the programs of a queue do not use.
TEST(TriggerDevice, WordsOfFourBytesAndEveryCompare) {
  alignas(8) std::array<uint32_t, 4> words = {0xfffffff0u, 0, 7, 7};
  const uint64_t status = 0;
  const auto op = [&](OpCode code, Compare compare, uint32_t& word, uint64_t operand) {
    return TriggerOp{.code = code,
                     .width = Width::k32,
                     .order = Order::kRelease,
                     .compare = compare,
                     .to = reinterpret_cast<std::byte*>(&word),
                     .operand = operand};
  };
  const auto ends = [&](const TriggerOp& wait) {
    return runTriggered(port::ThisThread(), &wait, 1, &status, 1000);
  };
  using enum Compare;
  EXPECT_EQ(ends(op(OpCode::kWait, kGreaterEqual, words[0], 0xffffffe0u)), TriggerOutcome::kOk);
  EXPECT_EQ(ends(op(OpCode::kWait, kGreaterEqual, words[0], 5)), TriggerOutcome::kTimeout)
      << "it compares as signed words of 32 bits, which wrap";
  EXPECT_EQ(ends(op(OpCode::kWait, kEqual, words[2], 7)), TriggerOutcome::kOk);
  EXPECT_EQ(ends(op(OpCode::kWait, kEqual, words[2], 8)), TriggerOutcome::kTimeout);
  EXPECT_EQ(ends(op(OpCode::kWait, kAnd, words[2], 4)), TriggerOutcome::kOk);
  EXPECT_EQ(ends(op(OpCode::kWait, kAnd, words[2], 8)), TriggerOutcome::kTimeout);
  EXPECT_EQ(ends(op(OpCode::kWait, kNor, words[2], 8)), TriggerOutcome::kOk);
  EXPECT_EQ(ends(op(OpCode::kWait, kNor, words[2], 0xfffffff8u)), TriggerOutcome::kTimeout);
  const TriggerOp store = op(OpCode::kStore, kEqual, words[2], 0x1'0000'0009u);
  EXPECT_EQ(ends(store), TriggerOutcome::kOk);
  EXPECT_EQ(words[2], 9u);
  EXPECT_EQ(words[3], 7u) << "its neighbour";
}

}  // namespace
}  // namespace peerlane
