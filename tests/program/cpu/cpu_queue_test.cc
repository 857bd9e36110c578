// SPDX-License-Identifier: Apache-2.0
//
// The port queue of host memory: order, slices, and what goes by an agent.
#include "peerlane/program/cpu/cpu_queue.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <bit>
#include <vector>

#include "tests/core/expect_ok.h"
#include "tests/program/cpu/fake_copy_machine.h"
#include "tests/program/model/scripted_agent.h"

namespace peerlane {
namespace {

using Advance = PortQueue::Advance;
using Answer = ScriptedAgent::Answer;

std::byte* bytesOf(uint64_t& word) {
  return reinterpret_cast<std::byte*>(&word);
}
uint64_t valueOf(uint64_t& word) {
  return std::atomic_ref<uint64_t>(word).load(std::memory_order_acquire);
}
// Advances until nothing is under way; a bound on the calls instead of a clock.
bool finishes(PortQueue& queue) {
  for (int i = 0; i < 100'000; ++i) {
    if (queue.isIdle()) return true;
    (void)queue.advance();
  }
  return false;
}

TEST(CpuQueue, IsIdleAtFirst) {
  cpu::CpuQueue queue(nullptr);
  EXPECT_TRUE(queue.isIdle());
  EXPECT_TRUE(queue.hasRoom());
  EXPECT_EQ(queue.advance(), Advance::kIdle);
  EXPECT_OK(queue.health());
}

TEST(CpuQueue, CopiesAndStoresInTheOrderOfAsking) {
  cpu::CpuQueue queue(nullptr);
  uint64_t source = 5, middle = 0, end = 0, word = 0;
  const uint64_t size = sizeof(source);
  EXPECT_OK(queue.store({.address = bytesOf(source)}, 11));
  EXPECT_OK(queue.copy({.address = bytesOf(middle)}, {.address = bytesOf(source)}, size));
  EXPECT_OK(queue.store({.address = bytesOf(source)}, 22));
  EXPECT_OK(queue.copy({.address = bytesOf(end)}, {.address = bytesOf(middle)}, size));
  EXPECT_OK(queue.copy({.address = bytesOf(middle)}, {.address = bytesOf(source)}, size));
  EXPECT_OK(queue.store({.address = bytesOf(word)}, 33));
  EXPECT_FALSE(queue.isIdle());
  EXPECT_EQ(source, 5u) << "nothing is done before advance()";
  ASSERT_TRUE(finishes(queue));
  EXPECT_EQ(end, 11u);
  EXPECT_EQ(middle, 22u);
  EXPECT_EQ(word, 33u);
}

TEST(CpuQueue, AStoreComesBehindALongCopy) {
  cpu::CpuQueue queue(nullptr);
  std::vector<std::byte> from(3 << 20, std::byte{7}), to(from.size());
  uint64_t word = 0;
  EXPECT_OK(queue.copy({.address = to.data()}, {.address = from.data()}, from.size()));
  EXPECT_OK(queue.store({.address = bytesOf(word)}, 1));
  while (valueOf(word) == 0) {
    const bool isWhole = to.back() == std::byte{7};
    ASSERT_EQ(queue.advance(), Advance::kMoved);
    ASSERT_TRUE(valueOf(word) == 0 || isWhole || to.back() == std::byte{7});
  }
  EXPECT_EQ(to, from);
}

// Two queues are served in turn: the short one is not behind the long one's last byte.
TEST(CpuQueue, AMarkIsRaisedBehindWhatWasAskedForBeforeIt) {
  cpu::CpuQueue queue(nullptr);
  const auto first = std::make_shared<std::atomic<bool>>(false);
  const auto second = std::make_shared<std::atomic<bool>>(false);
  queue.mark(first);
  EXPECT_FALSE(first->load()) << "nothing is done before advance()";
  std::vector<std::byte> from(8 << 20), to(8 << 20);
  EXPECT_OK(queue.copy({.address = to.data()}, {.address = from.data()}, from.size()));
  queue.mark(second);
  EXPECT_OK(queue.copy({.address = to.data()}, {.address = from.data()}, from.size()));
  EXPECT_EQ(queue.advance(), Advance::kMoved);
  EXPECT_TRUE(first->load());
  EXPECT_FALSE(second->load());
  for (int i = 0; i < 1000 && !second->load(); ++i) (void)queue.advance();
  EXPECT_TRUE(second->load());
  EXPECT_FALSE(queue.isIdle()) << "the copy behind it is still under way";
  ASSERT_TRUE(finishes(queue));
}

TEST(CpuQueue, ASecondQueueIsServedBetweenTheSlices) {
  cpu::CpuQueue large(nullptr), small(nullptr);
  std::vector<std::byte> from(8 << 20, std::byte{7}), to(from.size());
  uint64_t word = 0;
  EXPECT_OK(large.copy({.address = to.data()}, {.address = from.data()}, from.size()));
  EXPECT_OK(small.store({.address = bytesOf(word)}, 1));
  EXPECT_EQ(large.advance(), Advance::kMoved);
  EXPECT_FALSE(large.isIdle());
  EXPECT_EQ(to.back(), std::byte{0}) << "one turn does not copy it all";
  EXPECT_EQ(small.advance(), Advance::kMoved);
  EXPECT_EQ(word, 1u);
  ASSERT_TRUE(finishes(large));
  EXPECT_EQ(to, from);
}

// So many copies of one slice are as long as one long copy.
TEST(CpuQueue, ManyCopiesAreServedInSlicesToo) {
  constexpr uint64_t kBytes = 128 * 1024, kCopies = 100;
  cpu::CpuQueue queue(nullptr);
  std::vector<std::byte> from(kBytes, std::byte{7}), to(kBytes * kCopies);
  for (uint64_t i = 0; i < kCopies; ++i)
    EXPECT_OK(queue.copy({.address = to.data() + i * kBytes}, {.address = from.data()}, kBytes));
  int turns = 0;
  for (; !queue.isIdle() && turns < 1000; ++turns) EXPECT_EQ(queue.advance(), Advance::kMoved);
  EXPECT_GE(turns, 10) << "12.5 MiB in fewer turns hold others up";
  EXPECT_EQ(to.back(), std::byte{7});
}

// What is small is not spread over turns.
TEST(CpuQueue, TheCopierMakesLargeCopiesInSlicesOfOneWhole) {
  cpu::FakeCopyMachine fake({100, 100, 100, 100});
  Metrics metrics;
  const auto trials = std::make_shared<cpu::CopyTrials>(fake.machine());
  const cpu::HostCopier copier = MUST(cpu::HostCopier::create({}, 0, metrics, trials));
  cpu::CpuQueue queue(nullptr, &copier);
  std::vector<std::byte> from(5 << 20, std::byte{9}), to(from.size());
  for (const size_t bytes : {from.size(), size_t{1000}})
    EXPECT_OK(queue.copy({.address = to.data()}, {.address = from.data()}, bytes));
  ASSERT_TRUE(finishes(queue));
  EXPECT_TRUE(to == from) << "wrong bytes";
  EXPECT_EQ(fake.bytesBy(cpu::CopyInstruction::kMemcpy), from.size());
  EXPECT_EQ(copier.explain(),
            "measured here: memcpy, from 1MiB memcpy until measured, from 4MiB memcpy so far, from "
            "16MiB memcpy until measured");
}

TEST(CpuQueue, SmallCopiesGoTogether) {
  cpu::CpuQueue queue(nullptr);
  std::array<uint64_t, 64> from{}, to{};
  for (uint64_t i = 0; i < from.size(); ++i) {
    from[i] = i + 1;
    EXPECT_OK(queue.copy({.address = bytesOf(to[i])}, {.address = bytesOf(from[i])}, 8));
  }
  EXPECT_EQ(queue.advance(), Advance::kMoved);
  EXPECT_TRUE(queue.isIdle());
  EXPECT_EQ(to, from);
}

TEST(CpuQueue, SaysWhenItHasNoRoomAndTakesMoreAfterwards) {
  cpu::CpuQueue queue(nullptr);
  uint64_t word = 0, asked = 0;
  for (; queue.hasRoom() && asked < 100'000; ++asked)
    EXPECT_OK(queue.store({.address = bytesOf(word)}, asked + 1));
  EXPECT_LT(asked, 100'000u);
  ASSERT_TRUE(finishes(queue));
  EXPECT_EQ(word, asked);
  EXPECT_TRUE(queue.hasRoom());
}

class AgentQueueTest : public testing::Test {
 protected:
  AgentQueueTest() {
    remote_.linkKey = std::bit_cast<uint64_t>(there_.data());
    remote_.grant.bytes = sizeof(there_);
  }
  PortAddress there(uint64_t index) const { return {.remote = &remote_, .offset = index * 8}; }
  static PortAddress here(uint64_t& word) { return {.address = bytesOf(word)}; }

  alignas(64) std::array<uint64_t, 64> there_{};
  RemoteMemory remote_;
  ScriptedAgent agent_;
  Mailbox mailbox_{agent_};
  cpu::CpuQueue queue_{&mailbox_};
};

TEST_F(AgentQueueTest, PutsGetsAndStoresByTheAgent) {
  uint64_t source = 41, back = 0;
  EXPECT_OK(queue_.copy(there(3), here(source), 8));
  EXPECT_OK(queue_.store(there(4), 42));
  EXPECT_OK(queue_.copy(here(back), there(3), 8));
  ASSERT_TRUE(finishes(queue_));
  EXPECT_EQ(there_[3], 41u);
  EXPECT_EQ(there_[4], 42u);
  EXPECT_EQ(back, 41u);
  EXPECT_EQ(agent_.verbs(), (std::vector{Verb::kPut, Verb::kStore, Verb::kGet}));
}

TEST_F(AgentQueueTest, AMarkWaitsForTheAgent) {
  agent_.sendAll(true);
  uint64_t source = 5;
  const auto passed = std::make_shared<std::atomic<bool>>(false);
  EXPECT_OK(queue_.copy(there(0), here(source), 8));
  queue_.mark(passed);
  for (int i = 0; i < 10; ++i) (void)queue_.advance();
  EXPECT_FALSE(passed->load());
  agent_.finishOne();
  for (int i = 0; i < 10; ++i) (void)queue_.advance();
  EXPECT_TRUE(passed->load());
}

// A mapped word must not be seen before what an agent still carries.
TEST_F(AgentQueueTest, AMappedStoreWaitsForTheAgent) {
  agent_.sendAll(true);
  uint64_t source = 5, done = 0;
  EXPECT_OK(queue_.copy(there(0), here(source), 8));
  EXPECT_OK(queue_.store(here(done), 9));
  for (int i = 0; i < 10; ++i) (void)queue_.advance();
  EXPECT_EQ(done, 0u);
  EXPECT_FALSE(queue_.isIdle());
  EXPECT_EQ(queue_.advance(), Advance::kPending) << "nobody rings for it";
  ASSERT_TRUE(agent_.finishOne());
  ASSERT_TRUE(finishes(queue_));
  EXPECT_EQ(there_[0], 5u);
  EXPECT_EQ(done, 9u);
}

// Nor does the agent begin before a mapped copy that was asked for earlier.
TEST_F(AgentQueueTest, TheAgentWaitsForMappedCopies) {
  std::vector<std::byte> from(1 << 20, std::byte{7}), to(from.size());
  EXPECT_OK(queue_.copy({.address = to.data()}, {.address = from.data()}, from.size()));
  EXPECT_OK(queue_.store(there(0), 1));
  while (agent_.calls() == 0) {
    ASSERT_FALSE(queue_.isIdle());
    (void)queue_.advance();
  }
  EXPECT_EQ(to.back(), std::byte{7});
  ASSERT_TRUE(finishes(queue_));
  EXPECT_EQ(there_[0], 1u);
}

// Far more than a mailbox has slots, and pieces are those of their own entries.
TEST_F(AgentQueueTest, MoreThanTheMailboxHoldsComesInOrder) {
  std::array<uint64_t, 60> sources{};
  for (uint64_t i = 0; i < sources.size(); ++i) {
    sources[i] = 100 + i;
    EXPECT_OK(queue_.copy(there(i), here(sources[i]), 8));
    EXPECT_OK(queue_.store(there(63), i));
  }
  agent_.sendAll(true);
  for (uint64_t finished = 0; finished < 2 * sources.size();) {
    (void)queue_.advance();
    ASSERT_LE(agent_.sent(), Mailbox::kSlots);
    if (!agent_.finishOne()) continue;
    ++finished;
    if (finished % 2 == 0) {
      ASSERT_EQ(valueOf(there_[63]), finished / 2 - 1);
      ASSERT_EQ(there_[finished / 2 - 1], 99 + finished / 2);
    }
  }
  EXPECT_TRUE(finishes(queue_));
}

// An agent may copy on the calling thread: it is given a slice in one turn, too.
TEST_F(AgentQueueTest, TheAgentIsGivenALongCopyInSlices) {
  std::vector<std::byte> from(5'000'000), to(from.size());
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i / 7 + i / 999);
  RemoteMemory far;
  far.linkKey = std::bit_cast<uint64_t>(to.data());
  far.grant.bytes = to.size();
  constexpr uint64_t kAt = 3;
  EXPECT_OK(queue_.copy({.remote = &far, .offset = kAt}, {.address = from.data() + kAt},
                        from.size() - kAt));
  EXPECT_OK(queue_.store(there(0), 1));
  size_t calls = 0;
  for (int turns = 0; turns < 1000 && !queue_.isIdle(); ++turns) {
    EXPECT_EQ(there_[0], 0u);
    (void)queue_.advance();
    EXPECT_LE(agent_.calls(), calls + 2);
    calls = agent_.calls();
  }
  EXPECT_GE(calls, 6u);
  EXPECT_EQ(there_[0], 1u);
  to[0] = from[0], to[1] = from[1], to[2] = from[2];
  EXPECT_EQ(to, from);
}

TEST_F(AgentQueueTest, AgainIsAskedAgain) {
  agent_.script({Answer::kAgain, Answer::kMore, Answer::kAgain});
  EXPECT_OK(queue_.store(there(0), 7));
  ASSERT_TRUE(finishes(queue_));
  EXPECT_EQ(there_[0], 7u);
}

TEST_F(AgentQueueTest, AFailureOfTheAgentEndsTheQueue) {
  agent_.sendAll(true);
  uint64_t source = 5, done = 0;
  EXPECT_OK(queue_.copy(there(0), here(source), 8));
  EXPECT_OK(queue_.store(here(done), 9));
  (void)queue_.advance();
  ASSERT_TRUE(agent_.finishOne(Code::kPeerLost));
  ASSERT_TRUE(finishes(queue_));
  const Status failed = queue_.health();
  EXPECT_EQ(failed.code(), Code::kPeerLost) << failed.toString();
  EXPECT_EQ(done, 0u) << "what was behind it is not carried out";
  EXPECT_EQ(queue_.store(here(done), 9).code(), Code::kPeerLost);
  EXPECT_EQ(queue_.copy(there(0), here(source), 8).code(), Code::kPeerLost);
  EXPECT_EQ(queue_.advance(), Advance::kIdle);
  EXPECT_EQ(done, 0u);
  EXPECT_TRUE(queue_.hasRoom()) << "requests of ended semaphores are dropped, not kept";
}

}  // namespace
}  // namespace peerlane
