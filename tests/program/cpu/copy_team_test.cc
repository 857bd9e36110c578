// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/cpu/copy_team.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <barrier>
#include <cstdlib>
#include <latch>
#include <mutex>
#include <set>

#include "tests/core/expect_ok.h"

namespace peerlane::cpu {
namespace {

uint64_t valueOf(const Metrics& metrics, const std::string& name) {
  const std::string text = metrics.text();
  const size_t at = text.find("\n" + name + " ");
  return at == std::string::npos ? 0
                                 : std::strtoull(text.c_str() + at + name.size() + 2, nullptr, 10);
}

TEST(CopyTeam, EveryPartIsCarriedOutOnce) {
  Metrics metrics;
  const auto team = MUST(CopyTeam::create(3, metrics));
  constexpr uint32_t kParts = 200;
  for (int round = 0; round < 50; ++round) {
    std::vector<uint32_t> counts(kParts, 0);  // plain: the return of share() must publish them
    team->share(kParts, counts.data(), [&](uint32_t part) { ++counts[part]; });
    EXPECT_EQ(counts, std::vector<uint32_t>(kParts, 1));
  }
  EXPECT_EQ(valueOf(metrics, "peerlane_copy_jobs_total"), 50u);
}

// Parts that wait for each other end only where as many threads carry them out.
TEST(CopyTeam, TheTeamHelps) {
  Metrics metrics;
  const auto team = MUST(CopyTeam::create(3, metrics));
  std::barrier together(4);
  std::mutex mutex;
  std::set<std::thread::id> threads;
  team->share(4, nullptr, [&](uint32_t) {
    together.arrive_and_wait();
    const std::lock_guard lock(mutex);
    threads.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(threads.size(), 4u);
  EXPECT_TRUE(threads.contains(std::this_thread::get_id()));
}

// While all of the team are held up, another job is carried out by its own thread.
TEST(CopyTeam, NoJobWaitsForABusyTeam) {
  Metrics metrics;
  const auto team = MUST(CopyTeam::create(2, metrics));
  std::latch busy(3);
  std::latch goOn(1);
  std::thread other([&] {
    team->share(3, nullptr, [&](uint32_t) {
      busy.count_down();
      goOn.wait();
    });
  });
  busy.wait();
  uint32_t done = 0;
  team->share(5, nullptr, [&](uint32_t) { ++done; });
  EXPECT_EQ(done, 5u);
  goOn.count_down();
  other.join();
}

TEST(CopyTeam, JobsOfSeveralThreadsAtOnce) {
  Metrics metrics;
  const auto team = MUST(CopyTeam::create(2, metrics));
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller)
    callers.emplace_back([&] {
      for (int round = 0; round < 100; ++round) {
        std::vector<uint32_t> seen(16, 0);
        team->share(16, seen.data(), [&](uint32_t part) { seen[part] = part + 1; });
        for (uint32_t part = 0; part < 16; ++part) ASSERT_EQ(seen[part], part + 1);
      }
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(valueOf(metrics, "peerlane_copy_jobs_total"), 400u);
}

TEST(CopyTeam, HelpIsCounted) {
  Metrics metrics;
  {
    const auto team = MUST(CopyTeam::create(1, metrics));
    std::barrier together(2);
    team->share(2, nullptr, [&](uint32_t) { together.arrive_and_wait(); });
  }  // the thread counts after its last part
  EXPECT_EQ(valueOf(metrics, "peerlane_copy_parts_helped_total"), 1u);
}

TEST(CopyTeam, ItsSizeIsBounded) {
  Metrics metrics;
  const Status status = CopyTeam::create(CopyTeam::kMostThreads + 1, metrics).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("copyThreads is 65; accepted are 0 to 64"),
            std::string_view::npos)
      << status.toString();
}

// Its threads are not there, and nobody is left to end them.
TEST(CopyTeam, AForkedChildLeavesItAlone) {
  Metrics metrics;
  auto team = MUST(CopyTeam::create(2, metrics));
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    team.reset();
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  uint32_t done = 0;
  team->share(1, nullptr, [&](uint32_t) { ++done; });
  EXPECT_EQ(done, 1u);
}

// What the process may not use, its threads do not use; nor does the core of their creator bind
// them.
TEST(CopyTeam, ThreadsStayWhereTheProcessMayRun) {
  cpu_set_t mine;
  ASSERT_EQ(::sched_getaffinity(::getpid(), sizeof mine, &mine), 0);
  Metrics metrics;
  std::unique_ptr<CopyTeam, CopyTeam::End> team;
  std::thread([&] {
    cpu_set_t first;
    CPU_ZERO(&first);
    for (int cpu = 0; CPU_COUNT(&first) == 0; ++cpu)
      if (CPU_ISSET(cpu, &mine)) CPU_SET(cpu, &first);
    ASSERT_EQ(::sched_setaffinity(0, sizeof first, &first), 0);
    team = MUST(CopyTeam::create(1, metrics));
    cpu_set_t after;
    ASSERT_EQ(::sched_getaffinity(0, sizeof after, &after), 0);
    EXPECT_TRUE(CPU_EQUAL(&after, &first));
  }).join();
  std::barrier together(2);
  const std::thread::id caller = std::this_thread::get_id();
  team->share(2, nullptr, [&](uint32_t) {
    together.arrive_and_wait();
    if (std::this_thread::get_id() == caller) return;
    cpu_set_t bound;
    ASSERT_EQ(::sched_getaffinity(0, sizeof bound, &bound), 0);
    EXPECT_TRUE(CPU_EQUAL(&bound, &mine)) << CPU_COUNT(&bound) << " of " << CPU_COUNT(&mine);
  });
}

// A machine of two nodes of one processor each, as hwloc is told: this one has one node.
class TwoNodes : public testing::Test {
 protected:
  TwoNodes() {
    ::setenv("HWLOC_SYNTHETIC", "numa:2 pu:1", 1);
    ::setenv("HWLOC_THISSYSTEM", "1", 1);
  }
  ~TwoNodes() override {
    ::unsetenv("HWLOC_SYNTHETIC");
    ::unsetenv("HWLOC_THISSYSTEM");
  }
};

TEST_F(TwoNodes, ThreadsAreSpreadOverThemAndBound) {
  cpu_set_t mine;
  ASSERT_EQ(::sched_getaffinity(0, sizeof mine, &mine), 0);
  if (!CPU_ISSET(0, &mine) || !CPU_ISSET(1, &mine)) GTEST_SKIP() << "needs processors 0 and 1";
  Metrics metrics;
  const auto team = MUST(CopyTeam::create(2, metrics));
  const std::thread::id caller = std::this_thread::get_id();
  std::barrier together(3);
  std::mutex mutex;
  std::multiset<int> processors;
  team->share(3, nullptr, [&](uint32_t) {
    together.arrive_and_wait();
    if (std::this_thread::get_id() == caller) return;
    cpu_set_t bound;
    ASSERT_EQ(::sched_getaffinity(0, sizeof bound, &bound), 0);
    const std::lock_guard lock(mutex);
    EXPECT_EQ(CPU_COUNT(&bound), 1);
    processors.insert(CPU_ISSET(0, &bound) ? 0 : CPU_ISSET(1, &bound) ? 1 : -1);
  });
  EXPECT_EQ(processors, (std::multiset<int>{0, 1}));
}

TEST_F(TwoNodes, MemoryIsOnOneOfThem) {
  const NumaPlaces places = MUST(NumaPlaces::load());
  ASSERT_EQ(places.count(), 2u);
  const int touched = 1;
  // The kernel knows node 0 alone, and may be forbidden to say so.
  const int place = places.placeOf(&touched);
  EXPECT_TRUE(place == 0 || place == NumaPlaces::kUnknown) << place;
}

// The thread stays on one processor meanwhile, so that its node is known.
TEST(NumaPlaces, MemoryIsFarOnAnotherNodeThanTheThreads) {
  cpu_set_t before;
  ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(::sched_getcpu(), &one);
  ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  unsigned here = 0;
  ASSERT_EQ(::getcpu(nullptr, &here), 0);
  const std::vector<std::byte> touched(1 << 20, std::byte{1});
  const auto node = numaNodeOf(touched.data() + 4096);
  const bool isFar = node.has_value() && *node != static_cast<int>(here);
  EXPECT_EQ(isFarFromThisThread(touched.data() + 4096, touched.data() + 4097), isFar);
  EXPECT_TRUE(hasSeveralNumaNodes() || !isFar);
  void* const untouched =
      ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(untouched, MAP_FAILED);
  EXPECT_FALSE(isFarFromThisThread(untouched, untouched));
  EXPECT_EQ(numaNodeOf(untouched), std::nullopt);
  ::munmap(untouched, 4096);
  EXPECT_EQ(::sched_setaffinity(0, sizeof before, &before), 0);
}

TEST(NumaPlaces, ThisMachineHasAtLeastOne) {
  const NumaPlaces places = MUST(NumaPlaces::load());
  EXPECT_GE(places.count(), 1u);
  std::thread([&] { EXPECT_OK(places.bindThisThread(places.count() - 1)); }).join();
}

}  // namespace
}  // namespace peerlane::cpu
