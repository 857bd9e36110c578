// SPDX-License-Identifier: Apache-2.0
//
// Port channels to a process that is killed, and to one that does nothing.
// Letters and numbers in comments are those of the table in docs/port_channel.md.
#include "peerlane/channel/port/port_channel.h"
#include "tests/faults/surviving_side.h"

namespace peerlane {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr port::ThisThread kThread;
constexpr uint64_t kBytes = 1 << 20;
constexpr uint64_t kSoonNs = std::chrono::nanoseconds(kSoon).count();

class KilledPort : public testing::TestWithParam<const char*> {
 protected:
  KilledPort() : side_(configOfRoute(GetParam()), GetParam(), kBytes) {}
  // The survivor's half of "port ..." of fault_peer.
  PortChannel open(ProxyService& service, const std::string& what) {
    side_.other->tell("port " + what);
    const MemoryId local = MUST(service.addMemory(side_.memory->region()));
    const MemoryId remote = MUST(service.addMemory(side_.theirs));
    const PortConnection connection = MUST(service.connect(side_.peer));
    const PortSemaphore semaphore = MUST(service.addSemaphore(connection, 7, kSoon));
    EXPECT_EQ(side_.other->line(), "paired");
    return MUST(service.channel(semaphore, remote, local));
  }
  SurvivingSide side_;
};

INSTANTIATE_TEST_SUITE_P(Routes, KilledPort, testing::Values("mapped", "cma", "ring", "tcp"),
                         [](const auto& each) { return std::string(each.param); });

// F5: with both in the middle of long puts, every wait ends, the status says why, and the next
// process is welcome. Also while the proxy always has something to do.
TEST_P(KilledPort, EveryWaitEndsAndANewPeerIsWelcome) {
  for (const bool isBusy : {false, true}) {
    SCOPED_TRACE(isBusy ? "busy" : "not busy");
    if (isBusy) side_.meet(GetParam(), kBytes);
    auto service = MUST(ProxyService::create(*side_.context));
    const PortChannel channel = open(*service, "send");
    std::atomic<bool> stop{false};
    const PortChannelHandle handle = channel.deviceHandle();
    ASSERT_OK(service->onRequest(1, [&](const port::PortRequest&) {
      if (!stop.load()) (void)handle.request(1, 0, 0, 0, 0, 0);
      return Status::ok();
    }));
    ASSERT_OK(service->start());
    if (isBusy) (void)handle.request(1, 0, 0, 0, 0, 0);
    std::atomic<uint64_t> rounds{0};
    std::vector<std::thread> threads;
    std::vector<PortOutcome> outcomes(4);
    const auto until = [&](size_t index, auto call) {
      threads.emplace_back([&outcomes, index, call, &rounds] {
        while ((outcomes[index] = call()) == PortOutcome::kOk) rounds.fetch_add(1);
      });
    };
    until(0, [=] { return handle.wait(kThread).outcome; });
    until(1, [=] { return handle.wait(kThread, kSoonNs).outcome; });
    until(2, [=] { return handle.putWithSignalAndFlush(kThread, 0, 0, kBytes).outcome; });
    until(3, [=, ce = channel.deviceHandle(PortEngine::kCe)] {
      const PortOutcome put = ce.put(kThread, 0, 0, kBytes).outcome;
      return put == PortOutcome::kOk ? ce.flush(kThread).outcome : put;
    });
    ASSERT_TRUE(soon([&] { return rounds.load() >= 50; }));
    side_.other->kill();
    for (std::thread& thread : threads) thread.join();
    for (const PortOutcome outcome : outcomes) EXPECT_EQ(outcome, PortOutcome::kEnded);
    EXPECT_EQ(channel.status().code(), Code::kPeerLost) << channel.status().toString();
    EXPECT_EQ(channel.put(0, 0, 1).code(), Code::kPeerLost);
    EXPECT_EQ(channel.flush(kSoon).code(), Code::kPeerLost);
    stop.store(true);
    service.reset();
    EXPECT_OK(side_.context->unregister(side_.memory->region(), kSoon));
  }
}

// One service has semaphores with two peers, and goes on with the other one.
TEST_P(KilledPort, TheSameServiceTakesTheNextPeer) {
  auto service = MUST(ProxyService::create(*side_.context));
  ASSERT_OK(service->start());
  const PortChannel first = open(*service, "wait");
  ASSERT_TRUE(first.deviceHandle().signal(kThread));
  side_.other->kill();
  EXPECT_EQ(first.deviceHandle().wait(kThread).outcome, PortOutcome::kEnded);
  EXPECT_EQ(first.status().code(), Code::kPeerLost) << first.status().toString();
  side_.meet(GetParam(), kBytes);
  const PortChannel second = open(*service, "send");
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(second.deviceHandle().wait(kThread, 1, kSoonNs));
  EXPECT_OK(service->removeSemaphore(first.semaphore(), kSoon));
  ASSERT_TRUE(second.deviceHandle().wait(kThread, 1, kSoonNs));
}

// F6: the other process has paired and does nothing more: its proxy has not started, and no thread
// of it calls.
TEST_P(KilledPort, AProcessThatDoesNothingIsPutToAndGotFrom) {
  auto service = MUST(ProxyService::create(*side_.context));
  ASSERT_OK(service->start());
  ASSERT_EQ(side_.other->ask("fill 5"), "filled");
  const PortChannel channel = open(*service, "nothing");
  for (const PortEngine engine : {PortEngine::kAuto, PortEngine::kCe}) {
    const PortChannelHandle handle = channel.deviceHandle(engine);
    std::memset(side_.memory->data(), 0, kBytes);
    ASSERT_TRUE(handle.get(kThread, 0, 0, kBytes));
    ASSERT_TRUE(handle.flush(kThread, kSoonNs)) << channel.status().toString();
    EXPECT_TRUE(isFilledWith(side_.memory->data(), kBytes, 5));
    ASSERT_TRUE(handle.putWithSignal(kThread, 0, 0, kBytes));
    ASSERT_TRUE(handle.signal(kThread, 3));
    ASSERT_TRUE(handle.flush(kThread, kSoonNs)) << channel.status().toString();
  }
  EXPECT_EQ(side_.other->ask("look"), "5");
}

}  // namespace
}  // namespace peerlane
