// SPDX-License-Identifier: Apache-2.0
//
// What a port refuses, by whom it is found, and what its status says. An error of the proxy's ends
// its semaphore at both sides, and nothing else.
#include "tests/channel/port/port_pair.h"

namespace peerlane {
namespace {

using namespace std::chrono_literals;

constexpr uint64_t kBytes = 4096;

class PortRefusalTest : public PortRouteTest {
 protected:
  PortRefusalTest() {
    EXPECT_OK(open(kBytes));
    other_ = ports_.link(9);
  }
  // `ask` by the proxy: it ends the channel at both sides with a status that says `texts`; another
  // channel of the same connection goes on, and so do its memories.
  template <typename Ask>
  void expectEnd(const Ask& ask, const std::vector<std::string>& texts,
                 Code code = Code::kInvalidArgument) {
    const auto [here, there] = ports_.link(++tag_);
    std::thread waiter([&, far = there] {
      EXPECT_EQ(far.deviceHandle().wait(kThread, 1, kSoonNs).outcome, PortOutcome::kEnded);
    });
    ask(here.deviceHandle(PortEngine::kCe));
    EXPECT_EQ(here.deviceHandle(PortEngine::kCe).flush(kThread, kSoonNs).outcome,
              PortOutcome::kEnded);
    waiter.join();
    for (const Status& status : {here.status(), there.status()}) {
      EXPECT_EQ(status.code(), code) << status.toString();
      for (const std::string& text : texts)
        EXPECT_NE(status.message().find(text), std::string_view::npos)
            << status.toString() << " does not say '" << text << "'";
    }
    EXPECT_EQ(here.deviceHandle().wait(kThread, 1, kSoonNs).outcome, PortOutcome::kEnded);
    EXPECT_EQ(here.put(0, 0, 1).code(), code);
    const PortChannelHandle good = other_.first.deviceHandle(PortEngine::kCe);
    ASSERT_TRUE(good.putWithSignal(kThread, 0, 0, kBytes));
    ASSERT_TRUE(good.flush(kThread, kSoonNs)) << other_.first.status().toString();
    ASSERT_TRUE(other_.second.deviceHandle().wait(kThread, 1, kSoonNs));
    EXPECT_OK(a().service->status());
    EXPECT_OK(b().service->status());
    ASSERT_OK(a().service->removeSemaphore(here.semaphore(), kSoon));
    ASSERT_OK(b().service->removeSemaphore(there.semaphore(), kSoon));
  }

  std::pair<PortChannel, PortChannel> other_;
  uint32_t tag_ = 100;
};

INSTANTIATE_TEST_SUITE_P(Routes, PortRefusalTest, everyRouteAndVerbs(), routeName);

TEST_P(PortRefusalTest, OutOfRange) {
  const std::string remote = "memory " + std::to_string(a().remote);
  const std::string local = "memory " + std::to_string(a().local);
  expectEnd([](const auto& c) { EXPECT_TRUE(c.put(kThread, 1, 0, kBytes)); },
            {remote + " has 4096 bytes; 4096 from 1 on"});
  expectEnd([](const auto& c) { EXPECT_TRUE(c.put(kThread, 0, 1, kBytes)); },
            {local + " has 4096 bytes; 4096 from 1 on"});
  expectEnd([](const auto& c) { EXPECT_TRUE(c.get(kThread, kBytes, 0, 1)); },
            {local + " has 4096 bytes; 1 from 4096 on"});
  // Sums that do not fit 48 bits, or 64.
  const uint64_t most = (uint64_t{1} << 48) - 1;
  expectEnd([&](const auto& c) { EXPECT_TRUE(c.put(kThread, most, 0, most)); },
            {remote + " has 4096 bytes", std::to_string(most) + " from " + std::to_string(most)});
  expectEnd([&](const auto& c) { EXPECT_TRUE(c.putWithSignal(kThread, most, 0, 1)); }, {remote});
  EXPECT_EQ(b().handle().semaphore.value(), 0u) << "nor is it signalled";
}

TEST_P(PortRefusalTest, TheEdgeIsNotOutOfRange) {
  for (const PortEngine engine : {PortEngine::kCe, PortEngine::kAuto}) {
    const PortChannelHandle channel = a().handle(engine);
    EXPECT_TRUE(channel.put(kThread, kBytes, 0, 0));
    EXPECT_TRUE(channel.put(kThread, kBytes - 1, kBytes - 1, 1));
    EXPECT_TRUE(channel.put(kThread, 0, 0, kBytes));
    EXPECT_TRUE(channel.flush(kThread, kSoonNs)) << a().channel.status().toString();
  }
  EXPECT_OK(a().channel.status());
}

TEST_P(PortRefusalTest, TheWrongDirection) {
  const PortPlace far{a().remote, 0}, near{a().local, 0};
  expectEnd([&](const auto& c) { EXPECT_TRUE(c.put(kThread, near, near, 4)); },
            {"memory " + std::to_string(a().local) + " is local; the peer's is needed"});
  expectEnd([&](const auto& c) { EXPECT_TRUE(c.put(kThread, far, far, 4)); },
            {"memory " + std::to_string(a().remote) + " is the peer's; local memory is needed"});
  expectEnd([&](const auto& c) { EXPECT_TRUE(c.get(kThread, far, near, 4)); },
            {"memory " + std::to_string(a().remote) + " is the peer's"});
}

TEST_P(PortRefusalTest, AMemoryThatIsNotThere) {
  const PortPlace near{a().local, 0};
  expectEnd(
      [&](const auto& c) {
        EXPECT_TRUE(c.put(kThread, {4000, 0}, near, 4));
      },
      {"memory 4000 is not there"});
  expectEnd(
      [&](const auto& c) {
        EXPECT_TRUE(c.put(kThread, {(1 << 20) - 1, 0}, near, 4));
      },
      {"memory 1048575 is not there"});
  // One that was.
  const MemoryId gone = MUST(a().service->addMemory(a().theirs));
  const PortPlace was{gone, 0};
  ASSERT_TRUE(a().handle(PortEngine::kCe).put(kThread, was, near, 4));
  ASSERT_TRUE(a().handle(PortEngine::kCe).flush(kThread, kSoonNs));
  ASSERT_OK(a().service->removeMemory(gone));
  expectEnd([&](const auto& c) { EXPECT_TRUE(c.put(kThread, was, near, 4)); },
            {"memory " + std::to_string(gone) + " is not there"});
}

TEST_P(PortRefusalTest, MissingRights) {
  auto readOnly = memory(*pair_.b, kBytes, 3, Access::kRemoteRead);
  const PortPlace near{a().local, 0};
  const PortPlace far{MUST(a().service->addMemory(readOnly->importedBy(pair_.toB))), 0};
  expectEnd([&](const auto& c) { EXPECT_TRUE(c.put(kThread, far, near, 4)); },
            {"memory " + std::to_string(far.memory) + " grants", "this needs"},
            Code::kPermissionDenied);
  EXPECT_TRUE(readOnly->isAsExpected());
  ASSERT_TRUE(a().handle().get(kThread, near, far, kBytes)) << "what is granted is done";
  ASSERT_TRUE(a().handle().flush(kThread, kSoonNs));
  EXPECT_EQ(firstDifference(a().data(), readOnly->data(), kBytes), kBytes);
  // Inline would not look at rights: memory that does not grant both has no address there.
  const PortResult inlined = a().handle(PortEngine::kInline).put(kThread, far, near, 4);
  EXPECT_EQ(inlined.outcome, PortOutcome::kInvalid);
  EXPECT_NE(a().channel.status().message().find("memory " + std::to_string(far.memory) +
                                                " is not mapped for reading and writing"),
            std::string_view::npos)
      << a().channel.status().toString();
  EXPECT_TRUE(readOnly->isAsExpected());
  ASSERT_OK(a().service->removeMemory(far.memory));
}

// Found by the thread itself: nothing ends.
TEST_P(PortRefusalTest, WhatNoRequestCanName) {
  const PortChannelHandle channel = a().handle(PortEngine::kCe);
  const uint64_t tooMuch = uint64_t{1} << 48;
  EXPECT_EQ(channel.put(kThread, 0, 0, tooMuch).outcome, PortOutcome::kInvalid);
  EXPECT_NE(a().channel.status().message().find(std::to_string(tooMuch) + " bytes"),
            std::string_view::npos);
  EXPECT_EQ(channel.put(kThread, tooMuch, 0, 1).outcome, PortOutcome::kInvalid);
  EXPECT_EQ(channel.put(kThread, PortPlace{1 << 20, 0}, PortPlace{}, 1).outcome,
            PortOutcome::kInvalid);
  ASSERT_TRUE(channel.signal(kThread));
  EXPECT_TRUE(b().handle().wait(kThread, 1, kSoonNs));
}

// F7: what a thread was refused for, in words.
TEST_F(PortTest, AnInlineCallThatIsRefusedSaysWhy) {
  ASSERT_OK(open(kBytes));
  const PortChannelHandle channel = a().handle(PortEngine::kInline);
  EXPECT_OK(a().channel.status());
  EXPECT_EQ(channel.put(kThread, 4090, 0, 7).outcome, PortOutcome::kInvalid);
  EXPECT_NE(a().channel.status().message().find("offset 4090, outside"), std::string_view::npos)
      << a().channel.status().toString();
  EXPECT_EQ(channel.put(kThread, 0, ~uint64_t{0}, 2).outcome, PortOutcome::kInvalid);
  EXPECT_EQ(channel.get(kThread, 4095, 0, 2).outcome, PortOutcome::kInvalid);
  EXPECT_EQ(channel.put(kThread, PortPlace{77, 0}, PortPlace{a().local, 0}, 1).outcome,
            PortOutcome::kInvalid);
  EXPECT_NE(a().channel.status().message().find("memory 77 is not mapped"), std::string_view::npos)
      << a().channel.status().toString();
  EXPECT_EQ(channel.put(kThread, PortPlace{~0u, 0}, PortPlace{a().local, 0}, 1).outcome,
            PortOutcome::kInvalid);
  // Nothing has ended.
  ASSERT_TRUE(channel.putWithSignal(kThread, 0, 0, kBytes));
  EXPECT_TRUE(b().handle().wait(kThread, 1, kSoonNs));
  ASSERT_OK(a().channel.putWithSignal(0, 0, kBytes));
  ASSERT_OK(a().channel.flush(kSoon));
  EXPECT_TRUE(b().handle().wait(kThread, 1, kSoonNs));
  EXPECT_OK(b().channel.status());
}

TEST_F(PortTest, AChannelIsMadeOfTheRightMemories) {
  ASSERT_OK(open(kBytes));
  const auto refusal = [&](MemoryId remote, MemoryId local) {
    const Status refused = a().service->channel(a().semaphore, remote, local).status();
    EXPECT_EQ(refused.code(), Code::kInvalidArgument);
    return std::string(refused.message());
  };
  EXPECT_NE(refusal(a().local, a().local).find("is no peer's"), std::string::npos);
  EXPECT_NE(refusal(a().remote, a().remote).find("is not local"), std::string::npos);
  EXPECT_NE(refusal(99, a().local).find("memory 99"), std::string::npos);
  EXPECT_NE(refusal(a().remote, 1 << 20).find("memory 1048576"), std::string::npos);
}

// Memory of a third one is not the second one's, whoever names it.
TEST_F(PortTest, AnotherPeersMemoryIsRefused) {
  ASSERT_OK(open(kBytes));
  auto third = MUST(Context::create({configFor(kMapped), {}, ""}));
  const Peer toThird = MUST(pair_.a->connect(third->ticket(), kSoon));
  const Peer toA = MUST(third->accept(kSoon));
  const Region region = MUST(third->allocate(kBytes));
  const MemoryId theirs = MUST(a().service->addMemory(MUST(toThird.importRegion(region.share()))));
  const Status refused = a().service->channel(a().semaphore, theirs, a().local).status();
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_NE(refused.message().find("another peer"), std::string_view::npos);
  ASSERT_TRUE(
      a().handle(PortEngine::kCe).put(kThread, PortPlace{theirs, 0}, PortPlace{a().local, 0}, 4));
  EXPECT_EQ(a().handle(PortEngine::kCe).flush(kThread, kSoonNs).outcome, PortOutcome::kEnded);
  EXPECT_NE(a().channel.status().message().find("another peer"), std::string_view::npos)
      << a().channel.status().toString();
  ports_.close();
}

}  // namespace
}  // namespace peerlane
