// SPDX-License-Identifier: Apache-2.0
//
// What is added to a service and removed from it, and requests of the user's own.
// Letters and numbers in comments are those of the table in docs/port_channel.md.
#include <sys/wait.h>
#include <unistd.h>

#include <random>

#include "peerlane/session/peer/peer_core.h"
#include "tests/channel/port/port_pair.h"
#include "tests/core/kept_log.h"
#include "tests/core/soon.h"
#include "tests/progress/held_turns.h"

namespace peerlane {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

TEST_F(PortTest, RefusesOptionsThatAreNone) {
  const auto refusal = [&](const ProxyServiceOptions& options) {
    const Status refused = ProxyService::create(*pair_.a, options).status();
    EXPECT_EQ(refused.code(), Code::kInvalidArgument) << refused.toString();
    return std::string(refused.message());
  };
  EXPECT_NE(refusal({.fifoSlots = 100}).find("a FIFO of 100 slots"), std::string::npos);
  EXPECT_NE(refusal({.fifoSlots = 0}).find("a FIFO of 0 slots"), std::string::npos);
  EXPECT_NE(refusal({.semaphores = 0}).find("room for 0 semaphores"), std::string::npos);
  EXPECT_NE(refusal({.memories = (1 << 20) + 1}).find("room for 1048577 memories"),
            std::string::npos);
  EXPECT_NE(refusal({.device = {DeviceKind::kHost, 1}}).find("host:1"), std::string::npos);
  EXPECT_NE(refusal({.longestNap = 101ms}).find("longest nap"), std::string::npos);
  EXPECT_NE(refusal({.longestNap = 0ms}).find("longest nap"), std::string::npos);
}

// Its proxy is not there, and may have held any lock.
TEST_F(PortTest, InAForkedChildCallsAreErrorsAndNothingHangs) {
  ASSERT_OK(open(4096));
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // a hang ends the child by a signal
    PortSide& side = ports_.a;
    const auto refused = [](const Status& status) { return status.code() == Code::kNotSupported; };
    bool allAre = refused(side.service->removeMemory(side.local, kSoon));
    allAre &= refused(side.service->removeSemaphore(side.semaphore, kSoon));
    allAre &= refused(side.service->addMemory(side.region).status());
    allAre &= refused(side.service->addSemaphore(side.connection, 9, kSoon).status());
    allAre &= refused(side.service->connect(side.peer).status());
    allAre &= refused(side.service->start()) && refused(side.service->status());
    allAre &= refused(side.semaphore.signal()) && refused(side.channel.flush(kSoon));
    side.service->stop();
    side.service.reset();
    _exit(allAre ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

// A kernel that goes wrong makes thousands of them.
TEST_F(PortTest, OfRequestsThatAreRefusedNoMoreThanSomeAreLines) {
  constexpr int kRequests = 1000;
  ASSERT_OK(open(4096));
  const KeptLog log;
  for (int i = 0; i < kRequests; ++i)
    ASSERT_TRUE(a().handle().request(5, 0, 0, 0, 0, 0, 3));  // nobody handles that kind
  ASSERT_TRUE(a().handle().flush(kThread, kSoonNs));
  EXPECT_EQ(a().service->status().code(), Code::kInvalidArgument);
  EXPECT_GE(log.countOf("a port's request was refused"), 1);
  EXPECT_LT(log.lines().size(), kRequests / 2) << log.text();
}

// A2: ten times, on one TCP port.
TEST(PortBringUp, TenTimesOnTheSamePort) {
  std::string address = "127.0.0.1:0";  // the first time whatever is free
  for (int i = 0; i < 10; ++i) {
    SCOPED_TRACE(i);
    auto a = MUST(Context::create({configFor(kTcp), {address}, ""}));
    for (const std::string& each : a->addresses())
      if (each.starts_with("127.0.0.1:")) address = each;
    ASSERT_FALSE(address.ends_with(":0"));
    auto b = MUST(Context::create({configFor(kTcp), {}, ""}));
    const Peer toA = MUST(b->connect(address, a->secretText(), kSoon));
    const Peer toB = MUST(a->accept(kSoon));
    PortPair ports;
    ports.a.context = a.get();
    ports.b.context = b.get();
    ports.a.peer = toB;
    ports.b.peer = toA;
    for (PortSide* side : {&ports.a, &ports.b}) ASSERT_OK(side->open(4096, {}, false));
    Status there;
    std::thread other([&] { there = ports.b.join(ports.a.region.share(), 7); });
    ASSERT_OK(ports.a.join(ports.b.region.share(), 7));
    other.join();
    ASSERT_OK(there);
    ASSERT_OK(ports.a.service->start());
    fillWords(ports.a.data(), 1024, static_cast<uint32_t>(i));
    ASSERT_TRUE(ports.a.handle().putWithSignal(kThread, 0, 0, 4096));
    ASSERT_TRUE(ports.b.handle().wait(kThread, 1, kSoonNs));
    EXPECT_EQ(firstWrongWord(ports.b.data(), 1024, static_cast<uint32_t>(i)), 1024u);
  }
}

// A3: made and given back, with nobody there; started or not.
TEST(PortBringUp, EndsWithoutHavingConnected) {
  for (int i = 0; i < 4; ++i) {
    auto context = MUST(Context::create({configFor(kMapped), {}, ""}));
    auto service = MUST(ProxyService::create(*context));
    if (i % 2 != 0) {
      ASSERT_OK(service->start());
    }
    if (i >= 2) (void)MUST(service->addMemory(MUST(context->allocate(4096))));
  }
}

// F3: more than upstream's 512.
TEST_F(PortTest, TwoThousandMemories) {
  constexpr uint32_t kMemories = 2000;
  ASSERT_OK(open(kMemories * 4));
  std::vector<MemoryId> locals, remotes;
  for (uint32_t i = 0; i < kMemories; ++i) {
    locals.push_back(MUST(a().service->addMemory(a().region)));
    remotes.push_back(MUST(a().service->addMemory(a().theirs)));
  }
  EXPECT_EQ(a().service->addMemory(a().region).status().code(), Code::kOk);
  fillWords(a().data(), kMemories, 9);
  for (const PortEngine engine : {PortEngine::kCe, PortEngine::kAuto}) {
    fillWords(b().data(), kMemories, 0);
    const PortChannelHandle channel = a().handle(engine);
    for (uint32_t i = 0; i < kMemories; ++i)
      ASSERT_TRUE(channel.put(kThread, {remotes[i], i * 4}, {locals[kMemories - 1 - i], i * 4}, 4));
    ASSERT_TRUE(channel.flush(kThread, kSoonNs)) << a().channel.status().toString();
    EXPECT_EQ(firstWrongWord(b().data(), kMemories, 9), kMemories);
    ASSERT_TRUE(channel.get(kThread, {locals[1999], 0}, {remotes[1999], 4}, 4));
    ASSERT_TRUE(channel.flush(kThread, kSoonNs));
    EXPECT_EQ(firstWrongWord(a().data(), 1, 9 + 7), 1u);
    fillWords(a().data(), kMemories, 9);
  }
  for (uint32_t i = 0; i < kMemories; ++i) {
    ASSERT_OK(a().service->removeMemory(locals[i]));
    ASSERT_OK(a().service->removeMemory(remotes[i]));
  }
}

TEST_F(PortTest, RoomForMemoriesEndsAndComesBack) {
  ASSERT_OK(open(4096, {.memories = 3}));
  const MemoryId third = MUST(a().service->addMemory(a().region));
  for (const Status& refused :
       {a().service->addMemory(a().region).status(), a().service->addMemory(a().theirs).status()}) {
    EXPECT_EQ(refused.code(), Code::kUnavailable);
    EXPECT_NE(refused.message().find("room for 3 memories"), std::string_view::npos);
  }
  ASSERT_OK(a().service->removeMemory(third));
  EXPECT_OK(a().service->addMemory(a().region).status());
  EXPECT_EQ(a().service->removeMemory(99).code(), Code::kInvalidArgument);
  EXPECT_EQ(a().service->addMemory(Region()).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(a().service->addMemory(RemoteRegion()).status().code(), Code::kInvalidArgument);
}

// A region is in use while a service has it.
TEST_F(PortTest, AMemoryKeepsItsRegionUntilItIsRemoved) {
  ASSERT_OK(open(4096));
  const Region region = MUST(a().context->allocate(4096));
  const MemoryId id = MUST(a().service->addMemory(region));
  EXPECT_EQ(a().context->unregister(region, 1ms).code(), Code::kTimeout);
  ASSERT_OK(a().service->removeMemory(id));
  EXPECT_OK(a().context->unregister(region, kSoon));
  EXPECT_EQ(a().service->addMemory(region).status().code(), Code::kClosed);
}

// F3: more than upstream's 1024, and ids that a half has no room for.
TEST_F(PortTest, MoreThanAThousandSemaphores) {
  constexpr uint32_t kSemaphores = 1100;
  ASSERT_OK(open(4096, {.semaphores = kSemaphores}));
  std::vector<PortChannel> here, there;
  std::thread other([&] {
    for (uint32_t i = 1; i < kSemaphores; ++i)
      there.push_back(MUST(b().link(b().connection, 1000 + i)));
  });
  for (uint32_t i = 1; i < kSemaphores; ++i)
    here.push_back(MUST(a().link(a().connection, 1000 + i)));
  other.join();
  const Status full = a().service->addSemaphore(a().connection, 1, 1ms).status();
  EXPECT_EQ(full.code(), Code::kUnavailable);
  EXPECT_NE(full.message().find("room for 1100 semaphores"), std::string_view::npos);
  for (const PortEngine engine : {PortEngine::kCe, PortEngine::kInline}) {
    for (uint32_t i = 0; i < here.size(); ++i)
      ASSERT_TRUE(here[i].deviceHandle(engine).signal(kThread, i + 1));
    for (uint32_t i = 0; i < here.size(); ++i) {
      ASSERT_TRUE(there[i].deviceHandle().wait(kThread, i + 1, kSoonNs));
      ASSERT_EQ(there[i].deviceHandle().poll(kThread).outcome, PortOutcome::kTimeout);
    }
  }
}

// Offsets and sizes of 48 bits: memory of 5 GiB of which hardly a page is ever touched.
TEST_F(PortTest, OffsetsBeyondFourGiB) {
  constexpr uint64_t kBytes = uint64_t{5} << 30, kFar = (uint64_t{9} << 29) + 12;
  ASSERT_OK(open(kBytes));
  for (const PortEngine engine : {PortEngine::kCe, PortEngine::kInline}) {
    const PortChannelHandle channel = a().handle(engine);
    fillWords(a().data() + kFar, 100, 3);
    fillWords(a().data() + kFar - (uint64_t{4} << 30), 100, 4);  // what a cut offset would name
    ASSERT_TRUE(channel.putWithSignal(kThread, kFar + 400, kFar, 400));
    ASSERT_TRUE(b().handle().wait(kThread, 1, kSoonNs));
    EXPECT_EQ(firstWrongWord(b().data() + kFar + 400, 100, 3), 100u);
    ASSERT_TRUE(channel.get(kThread, kFar + 800, kFar + 400, 400));
    ASSERT_TRUE(channel.flush(kThread, kSoonNs));
    EXPECT_EQ(firstWrongWord(a().data() + kFar + 800, 100, 3), 100u);
    fillWords(b().data() + kFar + 400, 100, 0);
  }
}

// Memories, semaphores and connections come and go while a channel works.
TEST_F(PortTest, AddsAndRemovesBesideTraffic) {
  constexpr int kRounds = 30;
  ASSERT_OK(open(64 * 1024));
  std::atomic<bool> stop{false};
  std::atomic<uint32_t> sent{0};
  std::thread traffic([&] {
    const PortChannelHandle channel = a().handle(PortEngine::kCe);
    while (!stop.load()) {
      const uint32_t number = sent.load() + 1;
      fillWords(a().data(), 1024, number);
      ASSERT_TRUE(channel.putWithSignal(kThread, 0, 0, 4096));
      ASSERT_TRUE(b().handle().wait(kThread, 1, kSoonNs)) << b().channel.status().toString();
      ASSERT_EQ(firstWrongWord(b().data(), 1024, number), 1024u);
      ASSERT_TRUE(channel.flush(kThread, kSoonNs)) << a().channel.status().toString();
      sent.store(number);
    }
  });
  const auto live = [&](PortSide& side) {
    for (uint32_t i = 0; i < kRounds; ++i) {
      const PortConnection own = MUST(side.service->connect(side.peer));
      const MemoryId local = MUST(side.service->addMemory(side.region));
      const MemoryId remote = MUST(side.service->addMemory(side.theirs));
      const PortSemaphore semaphore = MUST(side.service->addSemaphore(own, 100 + i, kSoon));
      const PortChannel channel = MUST(side.service->channel(semaphore, remote, local));
      const PortChannelHandle handle = channel.deviceHandle(PortEngine::kCe);
      ASSERT_TRUE(handle.putWithSignal(kThread, 8192, 16384, 4096));
      ASSERT_TRUE(handle.wait(kThread, 1, kSoonNs)) << channel.status().toString();
      ASSERT_TRUE(handle.flush(kThread, kSoonNs)) << channel.status().toString();
      // Who removes first ends the peer's flush of its last signal, which has come then.
      ASSERT_TRUE(handle.signal(kThread));
      ASSERT_TRUE(handle.wait(kThread, 1, kSoonNs)) << channel.status().toString();
      ASSERT_NE(handle.flush(kThread, kSoonNs).outcome, PortOutcome::kTimeout);
      ASSERT_OK(side.service->removeSemaphore(semaphore, kSoon));
      ASSERT_OK(side.service->removeMemory(remote, kSoon));
      ASSERT_OK(side.service->removeMemory(local, kSoon));
      EXPECT_EQ(semaphore.status().code(), Code::kClosed);
    }
  };
  std::thread other([&] { live(b()); });
  live(a());
  other.join();
  const uint32_t now = sent.load();
  EXPECT_TRUE(soon([&] { return sent.load() > now + 2; })) << "the traffic has stopped";
  stop.store(true);
  traffic.join();
  EXPECT_OK(a().channel.status());
  EXPECT_OK(b().channel.status());
}

TEST_F(PortTest, ATagIsOneSemaphoresAtATime) {
  ASSERT_OK(open(4096));
  const Status refused = a().service->addSemaphore(a().connection, 7, kSoon).status();
  EXPECT_EQ(refused.code(), Code::kUnavailable);
  EXPECT_NE(refused.message().find("tag 7 is in use"), std::string_view::npos);
  // Another service of this side has the same peer, and the same tags.
  const auto second = MUST(ProxyService::create(*pair_.a));
  const PortConnection own = MUST(second->connect(pair_.toB));
  EXPECT_EQ(second->addSemaphore(own, 7, kSoon).status().code(), Code::kUnavailable);
  EXPECT_OK(a().channel.status());
  for (int i = 0; i < 5; ++i) {
    ASSERT_OK(a().service->removeSemaphore(a().semaphore, kSoon));
    ASSERT_OK(b().service->removeSemaphore(b().semaphore, kSoon));
    const auto [here, there] = ports_.link(7);
    a().semaphore = here.semaphore();
    b().semaphore = there.semaphore();
    ASSERT_TRUE(here.deviceHandle().signal(kThread));
    ASSERT_TRUE(there.deviceHandle().wait(kThread, 1, kSoonNs));
    EXPECT_EQ(there.deviceHandle().semaphore.value(), 1u) << "it begins anew";
  }
}

// A peer's threads may signal a line as long as its side has not removed the semaphore: nothing
// else is counted there.
TEST_F(PortTest, ALineServesNobodyElseWhileThePeerMaySignalIt) {
  ASSERT_OK(open(4096, {.semaphores = 1}));
  const PortSemaphoreHandle late = b().semaphore.deviceHandle();
  ASSERT_OK(a().service->removeSemaphore(a().semaphore));
  const auto again = [&] { return a().service->addSemaphore(a().connection, 9, 0ms); };
  EXPECT_EQ(again().status().code(), Code::kUnavailable);
  late.signal(kThread);
  ASSERT_OK(b().service->removeSemaphore(b().semaphore));
  // Nobody is at the other side, so it ends for want of time once there is room.
  EXPECT_TRUE(soon([&] { return again().status().code() == Code::kTimeout; }));
}

// A4: the bound holds, and both can meet afterwards.
TEST_F(PortTest, WhoIsAloneHearsOfItInTime) {
  ASSERT_OK(open(4096));
  const auto begin = Clock::now();
  const Status alone = a().service->addSemaphore(a().connection, 8, 1s).status();
  const auto taken = Clock::now() - begin;
  EXPECT_EQ(alone.code(), Code::kTimeout);
  EXPECT_NE(alone.message().find("tag 8"), std::string_view::npos);
  EXPECT_GE(taken, 1s);
  EXPECT_EQ(b().service->addSemaphore(b().connection, 8, 50ms).status().code(), Code::kTimeout);
  const auto [here, there] = ports_.link(8);
  ASSERT_TRUE(here.deviceHandle().signal(kThread));
  EXPECT_TRUE(there.deviceHandle().wait(kThread, 1, kSoonNs));
}

// A4: two sides that come and go meet in the end, and what is over on one side is told on the
// other.
TEST_F(PortTest, WhoTriesForAShortWhileMeetsAllTheSame) {
  ASSERT_OK(open(4096));
  const auto meet = [](PortSide& side, uint32_t tag, unsigned seed) {
    std::mt19937 random(seed);
    for (unsigned tries = 0;; ++tries) {
      // On a slow machine, or under a sanitizer, nobody meets in so short a while.
      const auto time = std::chrono::microseconds(random() % (500 + tries * 50));
      const auto channel = side.link(side.connection, tag, time);
      if (!channel.isOk()) {
        ASSERT_EQ(channel.status().code(), Code::kTimeout) << channel.status().toString();
        continue;
      }
      // The other one may have given up at the last moment.
      const PortChannelHandle handle = channel->deviceHandle();
      ASSERT_TRUE(handle.signal(kThread));
      const PortOutcome met = handle.wait(kThread, 1, kSoonNs).outcome;
      if (met == PortOutcome::kOk) return;
      ASSERT_EQ(met, PortOutcome::kEnded);
      ASSERT_OK(side.service->removeSemaphore(channel->semaphore(), kSoon));
    }
  };
  for (uint32_t tag = 100; tag < 130; ++tag) {
    std::thread other([&] { meet(b(), tag, tag); });
    meet(a(), tag, tag + 1000);
    other.join();
    ASSERT_FALSE(HasFatalFailure()) << tag;
  }
}

TEST_F(PortTest, SeveralServicesLiveSideBySide) {
  ASSERT_OK(open(4096));
  PortPair more;
  more.a.context = pair_.a.get();
  more.b.context = pair_.b.get();
  more.a.peer = pair_.toB;
  more.b.peer = pair_.toA;
  for (PortSide* side : {&more.a, &more.b}) ASSERT_OK(side->open(4096, {.fifoSlots = 2}, true));
  Status there;
  std::thread other([&] { there = more.b.join(more.a.region.share(), 70); });
  ASSERT_OK(more.a.join(more.b.region.share(), 70));
  other.join();
  ASSERT_OK(there);
  ASSERT_OK(more.a.service->start());
  for (const PortEngine engine : {PortEngine::kCe, PortEngine::kInline}) {
    ASSERT_TRUE(more.a.handle(engine).signal(kThread));
    ASSERT_TRUE(more.b.handle().wait(kThread, 1, kSoonNs));
    EXPECT_EQ(b().handle().poll(kThread).outcome, PortOutcome::kTimeout);
    ASSERT_TRUE(a().handle(engine).signal(kThread));
    ASSERT_TRUE(b().handle().wait(kThread, 1, kSoonNs));
    EXPECT_EQ(more.b.handle().poll(kThread).outcome, PortOutcome::kTimeout);
  }
  // What belongs to one is nothing to the other.
  EXPECT_EQ(more.a.service->removeSemaphore(a().semaphore).code(), Code::kInvalidArgument);
  EXPECT_EQ(more.a.service->channel(a().semaphore, more.a.remote, more.a.local).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(more.a.service->addSemaphore(a().connection, 71, 1ms).status().code(),
            Code::kInvalidArgument);
  more.close();
  ASSERT_TRUE(a().handle(PortEngine::kCe).signal(kThread));
  EXPECT_TRUE(b().handle().wait(kThread, 1, kSoonNs)) << "the end of one is not the other's";
}

TEST_F(PortTest, StopsAndGoesOn) {
  ASSERT_OK(open(4096));
  for (int i = 0; i < 10; ++i) {
    a().service->stop();
    ASSERT_TRUE(a().handle(PortEngine::kCe).signal(kThread));
    EXPECT_EQ(b().handle().poll(kThread).outcome, PortOutcome::kTimeout);
    ASSERT_OK(a().service->start());
    EXPECT_TRUE(b().handle().wait(kThread, 1, kSoonNs));
  }
}

// What holds a removal up is said by its timeout, and by dumps meanwhile.
TEST(PortWaits, ARemovalSaysWhatItWaitsFor) {
  ContextPair contexts(configFor(kTcp));
  PortPair ports;
  ASSERT_OK(ports.open(contexts, 4096, {}, false));
  ProxyService& service = *ports.a.service;
  const MemoryId more = MUST(service.addMemory(ports.a.region));
  const std::string wait = "requests under way in 1 queues of the port to end, as long as which ";
  const std::string memory = wait + "memory " + std::to_string(more) + " of the port cannot go";
  HeldTurns held(contexts.toA.core()->progress());
  ASSERT_TRUE(ports.a.handle(PortEngine::kCe).put(kThread, 0, 0, 64));
  Status late;
  EXPECT_TRUE(soon([&] {  // before it waits for the proxy to take the request
    late = service.removeMemory(more, 50ms);
    return late.message().find("ms for " + memory) != std::string_view::npos;
  })) << late.toString();
  EXPECT_EQ(late.code(), Code::kTimeout) << late.toString();
  std::thread first([&] { EXPECT_OK(service.removeMemory(more, kSoon)); });
  std::thread second([&] { EXPECT_OK(service.removeSemaphore(ports.a.semaphore, kSoon)); });
  std::string seen;
  EXPECT_TRUE(soon([&] {
    seen = contexts.a->dump();
    return seen.find("(at most 20.0 s) for " + memory) != std::string::npos &&
           seen.find(wait + "semaphore 7 of the port cannot go") != std::string::npos;
  })) << seen;
  held.letGo();
  first.join();
  second.join();
}

// Whoever removes waits; nobody waits for whoever removes. One peer answers nothing, so the removal
// cannot end; channels to another peer carry on.
TEST(PortWaits, OthersAreServedWhileARemovalWaits) {
  const Config config = configFor(kTcp);
  ContextPair contexts(config);
  const std::unique_ptr<Context> other = MUST(Context::create({config, {}, ""}));
  PortPair ports;
  ASSERT_OK(ports.open(contexts, 4096, {}, false));
  PortSide& near = ports.a;
  PortSide far;
  far.context = other.get();
  const Peer toFar = MUST(contexts.a->connect(other->ticket(), kSoon));
  far.peer = MUST(other->accept(kSoon));
  ASSERT_OK(far.open(4096, {}, false));
  const MemoryId remote =
      MUST(near.service->addMemory(MUST(toFar.importRegion(far.region.share()))));
  const PortConnection connection = MUST(near.service->connect(toFar));
  Status there;
  std::thread joins([&] { there = far.join(near.region.share(), 8); });
  const PortSemaphore semaphore = MUST(near.service->addSemaphore(connection, 8, kSoon));
  joins.join();
  ASSERT_OK(there);
  const PortChannel here = MUST(near.service->channel(semaphore, remote, near.local));
  const MemoryId more = MUST(near.service->addMemory(near.region));

  HeldTurns held(contexts.toA.core()->progress());
  ASSERT_TRUE(near.handle(PortEngine::kCe).put(kThread, 0, 0, 64));
  std::atomic<bool> isRemoved{false};
  std::thread remover([&] {
    EXPECT_OK(near.service->removeMemory(more, kSoon));
    isRemoved.store(true);
  });
  EXPECT_TRUE(
      soon([&] { return !near.service->channel(near.semaphore, near.remote, more).isOk(); }));
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(here.deviceHandle(PortEngine::kCe).signal(kThread));
    EXPECT_TRUE(far.handle().wait(kThread, 1, kSoonNs)) << i;
  }
  EXPECT_FALSE(isRemoved.load());
  held.letGo();
  remover.join();
  near.service.reset();
  far.service.reset();
  EXPECT_OK(other->unregister(far.region, kSoon));
}

// The same of a semaphore's removal: what others ask for behind it is not waited for.
TEST_F(PortTest, ARemovalAndAFlushEndBesideConstantTraffic) {
  ASSERT_OK(open(1 << 20, {.fifoSlots = 8}));
  std::atomic<bool> stops{false};
  std::vector<std::thread> others;
  for (int i = 0; i < 2; ++i)
    others.emplace_back([&] {
      while (!stops.load()) ASSERT_TRUE(a().handle(PortEngine::kCe).put(kThread, 0, 0, 4096));
    });
  for (uint32_t tag = 20; tag < 30; ++tag) {
    const auto [here, there] = ports_.link(tag);
    EXPECT_OK(here.putWithSignal(0, 0, 4));
    EXPECT_OK(here.flush(kSoon));
    EXPECT_TRUE(there.deviceHandle().poll(kThread));
    EXPECT_OK(a().service->removeSemaphore(here.semaphore(), kSoon));
    EXPECT_OK(b().service->removeSemaphore(there.semaphore(), kSoon));
  }
  stops.store(true);
  for (std::thread& other : others) other.join();
}

// What was asked for before a removal is carried out.
TEST_F(PortTest, NothingIsLostByARemoval) {
  constexpr uint64_t kBytes = 1 << 20, kWords = kBytes / 4;
  ASSERT_OK(open(kBytes));
  for (uint32_t i = 0; i < 20; ++i) {
    const MemoryId more = MUST(a().service->addMemory(a().region));
    const PortChannelHandle channel = a().handle(PortEngine::kCe);
    fillWords(a().data(), kWords, i);
    ASSERT_TRUE(channel.put(kThread, channel.remote, {.memory = more, .offset = 0}, kBytes));
    ASSERT_OK(a().service->removeMemory(more, kSoon));
    EXPECT_EQ(firstWrongWord(b().data(), kWords, i), kWords);
    ASSERT_OK(a().channel.status());
    const auto [here, there] = ports_.link(100 + i);
    fillWords(a().data(), kWords, i + 1000);
    ASSERT_TRUE(here.deviceHandle(PortEngine::kCe).putWithSignal(kThread, 0, 0, kBytes));
    ASSERT_OK(a().service->removeSemaphore(here.semaphore(), kSoon));
    EXPECT_TRUE(there.deviceHandle().wait(kThread, 1, kSoonNs));
    EXPECT_EQ(firstWrongWord(b().data(), kWords, i + 1000), kWords);
    ASSERT_OK(b().service->removeSemaphore(there.semaphore(), kSoon));
  }
}

TEST_F(PortTest, AConnectionGoesWithItsHandlesAndSemaphores) {
  ASSERT_OK(open(4096));
  const auto has = [&](int count) {
    return a().service->dump().find(", " + std::to_string(count) + " connections") !=
           std::string::npos;
  };
  EXPECT_TRUE(has(1));
  {
    const auto [here, there] = ports_.link(8, true);
    EXPECT_TRUE(has(2));
    ASSERT_OK(a().service->removeSemaphore(here.semaphore(), kSoon));
  }
  EXPECT_TRUE(soon([&] { return has(1); })) << a().service->dump();
  ASSERT_TRUE(a().handle(PortEngine::kCe).signal(kThread));
  EXPECT_TRUE(b().handle().wait(kThread, 1, kSoonNs));
}

TEST_F(PortTest, EmptyHandlesSaySo) {
  for (const Status& status :
       {PortSemaphore().status(), PortSemaphore().signal(), PortSemaphore().wait(1, 1ms),
        PortChannel().status(), PortChannel().put(0, 0, 1), PortChannel().get(0, 0, 1),
        PortChannel().putWithSignal(0, 0, 1), PortChannel().flush()})
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_FALSE(PortSemaphore());
  EXPECT_FALSE(PortChannel());
  EXPECT_EQ(PortChannel().explain(), "no channel");
  EXPECT_EQ(PortConnection().engine(), "");
  ASSERT_OK(open(4096));
  EXPECT_EQ(a().service->addSemaphore(PortConnection(), 9).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(a().service->removeSemaphore(PortSemaphore()).code(), Code::kInvalidArgument);
}

// D7: a proxy of the user's own.
TEST_F(PortTest, HandlersGetWhatThreadsAskFor) {
  ASSERT_OK(open(4096));
  std::vector<port::PortRequest> seen;  // by the proxy's thread alone until `count`
  std::atomic<uint32_t> count{0};
  ASSERT_OK(a().service->onRequest(70000, [&](const port::PortRequest& request) {
    seen.push_back(request);
    count.fetch_add(1);
    return Status::ok();
  }));
  const PortChannelHandle channel = a().handle();
  constexpr uint32_t kRequests = 1000;
  for (uint32_t i = 0; i < kRequests; ++i)
    ASSERT_TRUE(channel.request(70000, i, i + 1, uint64_t{i} << 27, i, uint64_t{i} << 20, i));
  ASSERT_TRUE(soon([&] { return count.load() == kRequests; }));
  for (uint32_t i = 0; i < kRequests; ++i) {
    EXPECT_EQ(seen[i].verbs, port::kCustomVerb);
    EXPECT_EQ(seen[i].semaphore, 70000u);
    EXPECT_EQ(seen[i].to, i);
    EXPECT_EQ(seen[i].from, i + 1);
    EXPECT_EQ(seen[i].toOffset, uint64_t{i} << 27);
    EXPECT_EQ(seen[i].fromOffset, i);
    EXPECT_EQ(seen[i].bytes, uint64_t{i} << 20);
    EXPECT_EQ(seen[i].value, i);
  }
  EXPECT_OK(a().service->status());
  EXPECT_EQ(a().service->onRequest(1 << 20, [](const auto&) { return Status::ok(); }).code(),
            Code::kInvalidArgument);
}

TEST_F(PortTest, AHandlerMayAddAndRemove) {
  ASSERT_OK(open(4096));
  std::atomic<int> done{0};
  ASSERT_OK(a().service->onRequest(5, [&](const port::PortRequest& request) -> Status {
    PEERLANE_ASSIGN(const MemoryId added, a().service->addMemory(a().region));
    PEERLANE_RETURN_IF_ERROR(a().service->removeMemory(added));
    PEERLANE_ASSIGN(const MemoryId far, a().service->addMemory(a().theirs));
    PEERLANE_RETURN_IF_ERROR(a().service->removeMemory(far));
    PEERLANE_RETURN_IF_ERROR(a().semaphore.signal(request.value));
    // Also itself.
    PEERLANE_RETURN_IF_ERROR(a().service->onRequest(6, nullptr));
    if (done.fetch_add(1) == 1) return a().service->onRequest(5, nullptr);
    return Status::ok();
  }));
  ASSERT_TRUE(a().handle().request(5, 0, 0, 0, 0, 0, 3));
  ASSERT_TRUE(b().handle().wait(kThread, 3, kSoonNs));
  ASSERT_TRUE(a().handle().request(5, 0, 0, 0, 0, 0, 3));
  ASSERT_TRUE(b().handle().wait(kThread, 3, kSoonNs));
  EXPECT_OK(a().service->status());
}

// What a handler refers to may go when another one has taken its place.
TEST_F(PortTest, AHandlerIsNotCalledAnyMoreOnceItWasReplaced) {
  ASSERT_OK(open(4096));
  std::atomic<bool> isInside{false}, isReplaced{false};
  std::atomic<int> calls{0}, calledSince{0};
  ASSERT_OK(a().service->onRequest(5, [&](const port::PortRequest&) {
    if (isReplaced.load()) calledSince.fetch_add(1);
    isInside.store(true);
    // Long enough for a replacement that did not wait.
    const auto end = Clock::now() + 100ms;
    while (!isReplaced.load() && Clock::now() < end) std::this_thread::yield();
    EXPECT_FALSE(isReplaced.load());
    calls.fetch_add(1);
    return Status::ok();
  }));
  a().service->stop();
  constexpr int kRequests = 64;  // so many that the replacement comes before the last one
  for (int i = 0; i < kRequests; ++i) ASSERT_TRUE(a().handle().request(5, 0, 0, 0, 0, 0));
  ASSERT_OK(a().service->start());
  while (!isInside.load()) std::this_thread::yield();
  std::atomic<int> others{0};
  ASSERT_OK(a().service->onRequest(5, [&](const port::PortRequest&) {
    others.fetch_add(1);
    return Status::ok();
  }));
  isReplaced.store(true);
  ASSERT_TRUE(soon([&] { return calls.load() + others.load() == kRequests; }));
  EXPECT_EQ(calledSince.load(), 0);
  EXPECT_GT(others.load(), 0) << "what was behind it is the next one's";
  ASSERT_OK(a().service->onRequest(5, nullptr));
}

TEST_F(PortTest, WhatAHandlerReturnsIsTheServicesStatus) {
  ASSERT_OK(open(4096));
  ASSERT_OK(a().service->onRequest(
      5, [](const port::PortRequest&) { return Status(Code::kCancelled, "not today"); }));
  ASSERT_TRUE(a().handle().request(5, 0, 0, 0, 0, 0));
  ASSERT_TRUE(soon([&] { return !a().service->status().isOk(); }));
  const Status status = a().service->status();
  EXPECT_EQ(status.code(), Code::kCancelled);
  EXPECT_NE(status.message().find("not today"), std::string_view::npos);
  EXPECT_NE(status.message().find("kind 5"), std::string_view::npos);
  // Semaphores go on.
  ASSERT_TRUE(a().handle(PortEngine::kCe).signal(kThread));
  EXPECT_TRUE(b().handle().wait(kThread, 1, kSoonNs));
  EXPECT_OK(a().channel.status());
}

TEST_F(PortTest, AKindWithoutAHandlerIsNamed) {
  ASSERT_OK(open(4096));
  ASSERT_TRUE(a().handle().request(4711, 0, 0, 0, 0, 0));
  ASSERT_TRUE(soon([&] { return !a().service->status().isOk(); }));
  EXPECT_EQ(a().service->status().code(), Code::kInvalidArgument);
  EXPECT_NE(a().service->status().message().find("kind 4711"), std::string_view::npos);
  ASSERT_TRUE(a().handle(PortEngine::kCe).signal(kThread));
  EXPECT_TRUE(b().handle().wait(kThread, 1, kSoonNs));
  EXPECT_EQ(a().handle().request(1 << 20, 0, 0, 0, 0, 0).outcome, PortOutcome::kInvalid)
      << "no request can name it";
}

}  // namespace
}  // namespace peerlane
