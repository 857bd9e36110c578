// SPDX-License-Identifier: Apache-2.0
//
// Messages and the end of their connection: what one side was told has happened, the other side is
// told as well, though the connection's end overtakes the words about it. Turns are held, so that
// it does.
#include "peerlane/session/peer/peer_core.h"
#include "tests/channel/communicator/communicator_pair.h"
#include "tests/core/soon.h"
#include "tests/progress/held_turns.h"

namespace peerlane {
namespace {

constexpr uint64_t kBytes = 3000;

class CommunicatorEndTest : public testing::TestWithParam<RouteCase> {
 protected:
  CommunicatorEndTest() : pair_(GetParam()) {}
  Progress& progressOf(const Peer& peer) { return peer.core()->progress(); }
  Result<Transfer> send(TestMemory& from, Protocol protocol) {
    MessageOptions options;
    options.protocol = protocol;
    return pair_.zero->send(1, from.region(), 0, kBytes, options);
  }
  // What `context` says of its communicator; nobody may hold its turns.
  static bool says(Context& context, const std::string& text) {
    return soon([&] { return context.dump().find(text) != std::string::npos; });
  }
  // The connection is over at `peer`, as it hears from the other side.
  static void closeAndAwait(const Peer& closing, const Peer& peer) {
    closing.close();
    EXPECT_TRUE(soon([&] { return peer.core()->over(); }));
  }
  TestMemory memory(Context& context, uint64_t seed) {
    return {context, kBytes, GetParam().shared, Access::kRemoteReadWrite, seed};
  }
  void expectTaken(const Result<Transfer>& received, TestMemory& from, TestMemory& to) {
    EXPECT_OK(received->wait(kSoon));
    std::memcpy(to.shadow(), from.shadow(), kBytes);
    EXPECT_TRUE(to.isAsExpected());
  }

  CommunicatorPair pair_;
  Peer& toB_ = pair_.contexts.toB;
  Peer& toA_ = pair_.contexts.toA;
};

// The receiver has agreed; the sender writes, has ended well, and leaves.
class ThePushedTest : public CommunicatorEndTest {
 protected:
  void run(Protocol protocol) {
    TestMemory from = memory(*pair_.contexts.a, 1);
    TestMemory to = memory(*pair_.contexts.b, 2);
    const auto received = pair_.one->recv(0, to.region(), 0, kBytes);
    ASSERT_OK(received.status());
    HeldTurns sender(progressOf(toB_));
    const auto sent = send(from, protocol);
    ASSERT_OK(sent.status());
    ASSERT_TRUE(soon([&] {
      const std::string text = pair_.contexts.b->dump();
      return text.find("from rank 0") != std::string::npos &&
             text.find("waits for its message") == std::string::npos;
    }));
    HeldTurns receiver(progressOf(toA_));
    sender.letGo();
    ASSERT_OK(sent->wait(kSoon));
    closeAndAwait(toB_, toA_);
    receiver.letGo();
    expectTaken(received, from, to);
  }
};
INSTANTIATE_TEST_SUITE_P(Routes, ThePushedTest, testing::Values(kSelf, kMapped), routeName);
TEST_P(ThePushedTest, PutIsTaken) {
  run(Protocol::kPut);
}
TEST_P(ThePushedTest, StagedMessageIsTaken) {
  run(Protocol::kRing);
}

// The receiver has taken the message and said so; the sender's confirmation of that is under way.
class TheAnsweredTest : public CommunicatorEndTest {};
INSTANTIATE_TEST_SUITE_P(Routes, TheAnsweredTest, testing::Values(kCma, kRing, kTcp), routeName);

TEST_P(TheAnsweredTest, EagerMessageIsTaken) {
  TestMemory from = memory(*pair_.contexts.a, 1);
  TestMemory to = memory(*pair_.contexts.b, 2);
  const auto received = pair_.one->recv(0, to.region(), 0, kBytes);
  ASSERT_OK(received.status());
  HeldTurns sender(progressOf(toB_));
  const auto sent = send(from, Protocol::kEager);
  ASSERT_OK(sent.status());
  ASSERT_TRUE(says(*pair_.contexts.b, "waits for the agent's confirmation of all"));
  HeldTurns receiver(progressOf(toA_));
  sender.letGo();
  ASSERT_OK(sent->wait(kSoon));
  closeAndAwait(toB_, toA_);
  receiver.letGo();
  expectTaken(received, from, to);
}

// A refusal counts as much as a message.
TEST_P(TheAnsweredTest, RefusalIsTold) {
  TestMemory from = memory(*pair_.contexts.a, 1);
  TestMemory to = memory(*pair_.contexts.b, 2);
  const auto received = pair_.one->recv(0, to.region(), 0, kBytes - 1);
  ASSERT_OK(received.status());
  HeldTurns sender(progressOf(toB_));
  const auto sent = send(from, Protocol::kEager);
  ASSERT_OK(sent.status());
  ASSERT_TRUE(says(*pair_.contexts.b, "waits for the agent's confirmation of all"));
  HeldTurns receiver(progressOf(toA_));
  sender.letGo();
  EXPECT_EQ(sent->wait(kSoon).code(), Code::kSizeMismatch);
  closeAndAwait(toB_, toA_);
  receiver.letGo();
  EXPECT_EQ(received->wait(kSoon).code(), Code::kSizeMismatch);
  EXPECT_TRUE(to.isAsExpected());
}

// The other way round: the receiver leaves once it has the message, and the sender has not looked
// at the answer yet.
class TheTakenTest : public CommunicatorEndTest {
 protected:
  void run(Protocol protocol) {
    TestMemory from = memory(*pair_.contexts.a, 1);
    TestMemory to = memory(*pair_.contexts.b, 2);
    HeldTurns sender(progressOf(toB_));
    const auto sent = send(from, protocol);
    ASSERT_OK(sent.status());
    const auto received = pair_.one->recv(0, to.region(), 0, kBytes);
    ASSERT_OK(received.status());
    expectTaken(received, from, to);
    closeAndAwait(toA_, toB_);
    sender.letGo();
    EXPECT_OK(sent->wait(kSoon));
  }
};
INSTANTIATE_TEST_SUITE_P(Routes, TheTakenTest, testing::Values(kSelf, kMapped), routeName);
TEST_P(TheTakenTest, EagerMessageWasSent) {
  run(Protocol::kEager);
}
TEST_P(TheTakenTest, MessageThatWasFetchedWasSent) {
  run(Protocol::kGet);
}

// The same without a hand on anything, over every route: as it comes.
class TheHurriedTest : public CommunicatorEndTest {
 protected:
  void run(Protocol protocol) {
    constexpr uint64_t kMessages = 3;
    TestMemory from = memory(*pair_.contexts.a, 1);
    TestMemory to = memory(*pair_.contexts.b, 2);
    std::vector<Transfer> received;
    std::vector<Transfer> sent;
    MessageOptions options;
    options.protocol = protocol;
    for (uint64_t i = 0; i < kMessages; ++i) {
      const uint64_t offset = i * (kBytes / kMessages);
      received.push_back(MUST(pair_.one->recv(0, to.region(), offset, kBytes / kMessages)));
      sent.push_back(MUST(pair_.zero->send(1, from.region(), offset, kBytes / kMessages, options)));
    }
    for (const Transfer& transfer : sent) ASSERT_OK(transfer.wait(kSoon));
    toB_.close();
    for (const Transfer& transfer : received) EXPECT_OK(transfer.wait(kSoon));
    std::memcpy(to.shadow(), from.shadow(), kBytes);
    EXPECT_TRUE(to.isAsExpected());
  }
};
INSTANTIATE_TEST_SUITE_P(Routes, TheHurriedTest, everyRoute(), routeName);
TEST_P(TheHurriedTest, Eager) {
  run(Protocol::kEager);
}
TEST_P(TheHurriedTest, Get) {
  run(Protocol::kGet);
}
TEST_P(TheHurriedTest, Put) {
  run(Protocol::kPut);
}
TEST_P(TheHurriedTest, Staged) {
  run(Protocol::kRing);
}

}  // namespace
}  // namespace peerlane
