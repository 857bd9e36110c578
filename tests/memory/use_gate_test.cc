// SPDX-License-Identifier: Apache-2.0
#include "peerlane/memory/use_gate.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <thread>
#include <vector>

#include "tests/os/refused_calls.h"

namespace peerlane {
namespace {

TEST(UseGate, LetsInUntilClosedAndTellsWhenEmpty) {
  UseGate gate;
  ASSERT_TRUE(gate.enter());
  ASSERT_TRUE(gate.enter());
  EXPECT_EQ(gate.pins(), 2u);
  gate.close();
  EXPECT_FALSE(gate.open());
  EXPECT_FALSE(gate.enter());
  EXPECT_EQ(gate.pins(), 2u) << "a refused entry leaves no pin";
  EXPECT_FALSE(gate.drained());
  gate.leave();
  EXPECT_FALSE(gate.drained());
  gate.leave();
  EXPECT_TRUE(gate.drained());
}

TEST(UseGate, OpensAgain) {
  UseGate gate;
  gate.close();
  gate.reopen();
  EXPECT_TRUE(gate.open());
  EXPECT_TRUE(gate.enter());
}

TEST(UseGate, AnEnrolledFlagKeepsItFromDraining) {
  UseGate gate;
  BusyFlag flag;
  BusyFlag other;
  gate.enroll(flag);
  gate.enroll(other);
  flag.raised.store(1);
  gate.close();
  EXPECT_FALSE(gate.drained());
  gate.withdraw(other);
  EXPECT_FALSE(gate.drained()) << "withdrawing another flag changes nothing";
  flag.raised.store(0);
  EXPECT_TRUE(gate.drained());
  flag.raised.store(1);
  gate.withdraw(flag);
  EXPECT_TRUE(gate.drained()) << "a flag that left is not looked at";
}

#if !defined(__SANITIZE_THREAD__)  // the fences are others there
// The barrier on all cores is paid for prepared posts alone: a program closes thousands of gates.
// Where the kernel forbids it, its use ends the process.
TEST(UseGate, OnlyPreparedPostsCostABarrier) {
  (void)prepareAsymmetricFence();
  const auto closeIn = [](bool hasFlag) {
    const pid_t child = fork();
    if (child == 0) {
      signal(SIGABRT, SIG_DFL);
      refuseCalls(SYS_membarrier, EINVAL);
      UseGate gate;
      BusyFlag flag;
      if (hasFlag) gate.enroll(flag);
      gate.close();
      _exit(gate.enter() ? 1 : 0);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  EXPECT_EQ(closeIn(false), 0);
  EXPECT_EQ(closeIn(true), -1) << "the barrier is not refused here: this test shows nothing";
}
#endif

// What the gate is for: memory is given away only when nobody is inside. Users write a canary that
// the closer takes away; a user that is inside after the closer saw "drained" finds it gone.
template <typename Use>
void stress(int rounds, const Use& use) {
  for (int round = 0; round < rounds; ++round) {
    UseGate gate;
    std::atomic<bool> mine{true};  // the memory is lent
    std::atomic<int> violations{0};
    std::atomic<int> started{0};
    std::vector<std::thread> users;
    for (int i = 0; i < 3; ++i) users.emplace_back([&] { use(gate, mine, violations, started); });
    while (started.load() < 3) std::this_thread::yield();
    gate.close();
    while (!gate.drained()) std::this_thread::yield();
    mine.store(false, std::memory_order_relaxed);
    for (std::thread& user : users) user.join();
    ASSERT_EQ(violations.load(), 0) << "round " << round;
  }
}

TEST(UseGateStress, NoPinSurvivesDraining) {
  stress(40, [](UseGate& gate, std::atomic<bool>& mine, std::atomic<int>& violations,
                std::atomic<int>& started) {
    started.fetch_add(1);
    while (gate.enter()) {
      for (int i = 0; i < 20; ++i)
        if (!mine.load(std::memory_order_relaxed)) violations.fetch_add(1);
      gate.leave();
    }
  });
}

TEST(UseGateStress, NoFlagSurvivesDraining) {
  (void)prepareAsymmetricFence();
  stress(40, [](UseGate& gate, std::atomic<bool>& mine, std::atomic<int>& violations,
                std::atomic<int>& started) {
    BusyFlag flag;
    gate.enroll(flag);
    started.fetch_add(1);
    for (;;) {
      flag.raised.store(1, std::memory_order_relaxed);
      lightFence();
      const bool open = gate.open();
      if (open)
        for (int i = 0; i < 20; ++i)
          if (!mine.load(std::memory_order_relaxed)) violations.fetch_add(1);
      flag.raised.store(0, std::memory_order_release);
      if (!open) break;
    }
    gate.withdraw(flag);
  });
}

}  // namespace
}  // namespace peerlane
