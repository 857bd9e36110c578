// SPDX-License-Identifier: Apache-2.0
//
// How semaphores and services end, and who hears of it. A process that is killed:
// tests/faults/killed_port_test.cc.
#include "tests/channel/port/port_pair.h"
#include "tests/core/soon.h"

namespace peerlane {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

class PortEndTest : public PortRouteTest {};
INSTANTIATE_TEST_SUITE_P(Routes, PortEndTest, everyRouteAndVerbs(), routeName);

// Threads that wait without a bound, with one, and by the host, until `end` lets them go.
template <typename End>
void expectWaitersEnd(PortSide& side, const End& end) {
  std::atomic<int> waiting{0};
  std::vector<std::thread> threads;
  threads.emplace_back([&] {
    waiting.fetch_add(1);
    EXPECT_EQ(side.handle().wait(kThread).outcome, PortOutcome::kEnded);
  });
  threads.emplace_back([&] {
    waiting.fetch_add(1);
    EXPECT_EQ(side.handle().wait(kThread, 1, kSoonNs).outcome, PortOutcome::kEnded);
  });
  threads.emplace_back([&] {
    waiting.fetch_add(1);
    EXPECT_EQ(side.handle().semaphore.waitUntil(kThread, 1).outcome, PortOutcome::kEnded);
  });
  threads.emplace_back([&] {
    waiting.fetch_add(1);
    const Status status = side.semaphore.wait(1, kSoon);
    EXPECT_EQ(status.code(), Code::kClosed) << status.toString();
  });
  while (waiting.load() < 4) std::this_thread::yield();
  end();
  for (std::thread& thread : threads) thread.join();
}

TEST_P(PortEndTest, TheServiceOfThePeerEndsWhileThreadsWait) {
  ASSERT_OK(open(4096));
  expectWaitersEnd(b(), [&] { a().service.reset(); });
  const Status status = b().channel.status();
  EXPECT_EQ(status.code(), Code::kClosed);
  EXPECT_NE(status.message().find("the peer"), std::string_view::npos) << status.toString();
  EXPECT_EQ(b().handle(PortEngine::kCe).flush(kThread, kSoonNs).outcome, PortOutcome::kOk)
      << "nothing was asked for";
  ASSERT_TRUE(b().handle(PortEngine::kCe).put(kThread, 0, 0, 4));
  EXPECT_EQ(b().handle(PortEngine::kCe).flush(kThread, kSoonNs).outcome, PortOutcome::kEnded);
  EXPECT_EQ(b().channel.put(0, 0, 4).code(), Code::kClosed);
  // A's handles say that there is no service any more.
  EXPECT_EQ(a().channel.status().code(), Code::kClosed);
  EXPECT_EQ(a().semaphore.signal().code(), Code::kClosed);
}

TEST_P(PortEndTest, ThePeerRemovesTheSemaphoreWhileThreadsWait) {
  ASSERT_OK(open(4096));
  const auto [here, there] = ports_.link(9);
  expectWaitersEnd(b(), [&] { ASSERT_OK(a().service->removeSemaphore(a().semaphore, kSoon)); });
  EXPECT_EQ(a().channel.status().code(), Code::kClosed);
  ASSERT_OK(a().service->removeSemaphore(a().semaphore, kSoon)) << "it is idempotent";
  ASSERT_TRUE(here.deviceHandle().signal(kThread));
  EXPECT_TRUE(there.deviceHandle().wait(kThread, 1, kSoonNs)) << "others go on";
}

TEST_P(PortEndTest, OnesOwnRemovalEndsWaitsToo) {
  ASSERT_OK(open(4096));
  std::atomic<bool> waiting{false};
  // Bounded: nobody may use the handle of a semaphore that is gone, so it ends first.
  std::thread waiter([&, handle = b().handle()] {
    waiting.store(true);
    EXPECT_EQ(handle.wait(kThread, 1, kSoonNs).outcome, PortOutcome::kEnded);
  });
  while (!waiting.load()) std::this_thread::yield();
  ASSERT_OK(b().service->removeSemaphore(b().semaphore, kSoon));
  waiter.join();
}

// What came before the end still counts.
TEST_P(PortEndTest, SignalsThatCameBeforeTheEndAreTaken) {
  ASSERT_OK(open(4096));
  for (const PortEngine engine : {PortEngine::kAuto, PortEngine::kCe})
    ASSERT_TRUE(a().handle(engine).signal(kThread));
  ASSERT_TRUE(a().handle(PortEngine::kCe).flush(kThread, kSoonNs));
  ASSERT_TRUE(b().handle().semaphore.waitUntil(kThread, 2, kSoonNs));
  a().service.reset();
  EXPECT_EQ(b().handle().wait(kThread, 3, kSoonNs).outcome, PortOutcome::kEnded);
  EXPECT_TRUE(b().handle().wait(kThread, 1, kSoonNs));
  EXPECT_TRUE(b().handle().wait(kThread));
  EXPECT_EQ(b().handle().wait(kThread, 1, kSoonNs).outcome, PortOutcome::kEnded);
  EXPECT_EQ(b().handle().poll(kThread).outcome, PortOutcome::kEnded);
}

// The peer closes in good order, with its service.
TEST_F(PortTest, ThePeersContextGoes) {
  ASSERT_OK(open(4096));
  a().service->stop();
  std::atomic<bool> waiting{false};
  std::thread waiter([&] {
    waiting.store(true);
    EXPECT_EQ(a().handle().wait(kThread).outcome, PortOutcome::kEnded);
  });
  while (!waiting.load()) std::this_thread::yield();
  ASSERT_OK(a().service->start());
  b().service.reset();
  b().region = Region();
  pair_.toA = Peer();
  b().peer = Peer();
  b().theirs = RemoteRegion();
  b().channel = PortChannel();
  b().semaphore = PortSemaphore();
  b().connection = PortConnection();
  pair_.b.reset();
  waiter.join();
  EXPECT_FALSE(a().channel.status().isOk());
}

// Threads without room in the FIFO when their semaphore ends leave no hole in it: the service's
// other semaphores are served.
TEST_F(PortTest, ThreadsThatWaitForRoomHoldUpNobodyWhenTheirSemaphoreEnds) {
  ASSERT_OK(open(4096, {.fifoSlots = 2}, false));
  const auto [here, there] = ports_.link(9);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] { (void)a().handle(PortEngine::kCe).signal(kThread); });
  const uint64_t* const head = a().handle().fifo.head;
  while (std::atomic_ref<const uint64_t>(*head).load() < 4) std::this_thread::yield();
  ASSERT_OK(b().service->removeSemaphore(b().semaphore, kSoon));
  EXPECT_TRUE(soon([&] { return !a().channel.status().isOk(); }));
  EXPECT_EQ(a().channel.status().code(), Code::kClosed);
  ASSERT_OK(a().service->start());
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(here.deviceHandle(PortEngine::kCe).signal(kThread));
  EXPECT_TRUE(there.deviceHandle().wait(kThread, 1, kSoonNs));
}

// What a removed semaphore left in the FIFO is not its number's next owner's.
TEST_F(PortTest, RequestsOfARemovedSemaphoreAreNobodys) {
  ASSERT_OK(open(4096, {.semaphores = 2}, false));
  const auto [old, oldThere] = ports_.link(9);
  ASSERT_TRUE(old.deviceHandle(PortEngine::kCe).signal(kThread, 3));
  ASSERT_TRUE(a().handle(PortEngine::kCe).signal(kThread, 2));
  ASSERT_TRUE(old.deviceHandle(PortEngine::kCe).putWithSignal(kThread, 0, 0, 4));
  ASSERT_OK(a().service->removeSemaphore(old.semaphore(), kSoon));
  ASSERT_OK(b().service->removeSemaphore(oldThere.semaphore(), kSoon));
  // There is no other number, and each side learns that the other one has let go of it.
  const auto awaitRoom = [](PortSide& side, uint32_t tagOfNobody) {
    const auto deadline = Clock::now() + kSoon;
    const auto isFull = [&] {
      return side.service->addSemaphore(side.connection, tagOfNobody, std::chrono::seconds(0))
                 .status()
                 .code() == Code::kUnavailable;
    };
    while (isFull() && Clock::now() < deadline) std::this_thread::yield();
  };
  awaitRoom(a(), 11);
  awaitRoom(b(), 12);
  const auto [here, there] = ports_.link(10);
  ASSERT_EQ(here.deviceHandle().number, old.deviceHandle().number) << "so nothing is shown";
  ASSERT_TRUE(here.deviceHandle(PortEngine::kCe).signal(kThread));
  ASSERT_OK(a().service->start());
  ASSERT_TRUE(here.deviceHandle(PortEngine::kCe).flush(kThread, kSoonNs));
  EXPECT_EQ(there.deviceHandle().semaphore.value(), 1u);
  EXPECT_TRUE(b().handle().wait(kThread, 2, kSoonNs)) << "others' stay";
  EXPECT_OK(a().service->status());
}

}  // namespace
}  // namespace peerlane
