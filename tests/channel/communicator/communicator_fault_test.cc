// SPDX-License-Identifier: Apache-2.0
//
// What goes wrong between two ranks: other lengths, cancelled messages, an end in the middle, wrong
// arguments. Both sides get one defined answer, nothing is written that should not be, and the
// messages behind are not disturbed.
#include <sys/resource.h>

#include <atomic>
#include <thread>

#include "peerlane/session/peer/peer_core.h"
#include "tests/channel/communicator/communicator_pair.h"
#include "tests/core/soon.h"
#include "tests/os/file_memory.h"
#include "tests/progress/standing_callback.h"

namespace peerlane {
namespace {

using namespace std::chrono_literals;

constexpr Protocol kEveryProtocol[] = {Protocol::kEager, Protocol::kGet, Protocol::kPut,
                                       Protocol::kRing};

class CommunicatorFaultTest : public testing::TestWithParam<RouteCase> {
 protected:
  CommunicatorFaultTest() : pair_(GetParam()) {}
  std::unique_ptr<TestMemory> memory(Context& context, size_t bytes, uint64_t seed,
                                     Access access = Access::kRemoteReadWrite) {
    return std::make_unique<TestMemory>(context, bytes, GetParam().shared, access, seed);
  }
  Context& a() { return *pair_.contexts.a; }
  Context& b() { return *pair_.contexts.b; }
  Result<Transfer> send(TestMemory& from, uint64_t bytes, Protocol protocol = Protocol::kAuto) {
    MessageOptions options;
    options.protocol = protocol;
    return pair_.zero->send(1, from.region(), 0, bytes, options);
  }
  Result<Transfer> recv(TestMemory& to, uint64_t bytes) {
    return pair_.one->recv(0, to.region(), 0, bytes);
  }
  // The lane still works.
  void expectOneMore(TestMemory& from, TestMemory& to) {
    const auto sent = send(from, from.bytes());
    EXPECT_EQ(endOf(recv(to, from.bytes())), Code::kOk);
    EXPECT_EQ(endOf(sent), Code::kOk);
    std::memcpy(to.shadow(), from.shadow(), from.bytes());
    EXPECT_TRUE(to.isAsExpected());
  }

  CommunicatorPair pair_;
};

INSTANTIATE_TEST_SUITE_P(Routes, CommunicatorFaultTest, everyRoute(), routeName);

TEST_P(CommunicatorFaultTest, RefusesOtherLengthsAtBothSides) {
  auto from = memory(a(), 4000, 1);
  auto to = memory(b(), 4000, 2);
  struct Lengths {
    uint64_t sent;
    uint64_t room;
  };
  for (const Protocol protocol : kEveryProtocol)
    for (const Lengths& lengths : {Lengths{1000, 999}, Lengths{1000, 1001}, Lengths{1, 4000},
                                   Lengths{4000, 0}, Lengths{0, 8}}) {
      const auto sent = send(*from, lengths.sent, protocol);
      const auto received = recv(*to, lengths.room);
      EXPECT_EQ(endOf(sent), Code::kSizeMismatch);
      EXPECT_EQ(endOf(received), Code::kSizeMismatch);
      const std::string room = std::to_string(lengths.room);
      EXPECT_NE(sent->status().message().find(room), std::string::npos)
          << sent->status().toString();
      EXPECT_NE(received->status().message().find(std::to_string(lengths.sent)), std::string::npos);
      EXPECT_TRUE(to->isAsExpected());
    }
  expectOneMore(*from, *to);
}

// Of a batch, the fitting messages go through.
TEST_P(CommunicatorFaultTest, ABatchReportsItsFirstFailure) {
  auto from = memory(a(), 40'000, 1);
  auto to = memory(b(), 40'000, 2);
  const MessageBlock out[] = {{&from->region(), 0, 10'000},
                              {&from->region(), 10'000, 10'000},
                              {&from->region(), 20'000, 10'000}};
  const MessageBlock in[] = {
      {&to->region(), 0, 10'000}, {&to->region(), 10'000, 9'999}, {&to->region(), 20'000, 10'000}};
  const auto sent = pair_.zero->sendBatch(1, out);
  EXPECT_EQ(endOf(pair_.one->recvBatch(0, in)), Code::kSizeMismatch);
  EXPECT_EQ(endOf(sent), Code::kSizeMismatch);
  std::memcpy(to->shadow(), from->shadow(), 10'000);
  std::memcpy(to->shadow() + 20'000, from->shadow() + 20'000, 10'000);
  EXPECT_TRUE(to->isAsExpected());
}

TEST_P(CommunicatorFaultTest, CancelsASendThatNobodyReceives) {
  auto from = memory(a(), 4000, 1);
  auto to = memory(b(), 4000, 2);
  for (const Protocol protocol : kEveryProtocol) {
    const auto sent = send(*from, 4000, protocol);
    ASSERT_OK(sent.status());
    sent->cancel();
    EXPECT_EQ(endOf(sent), Code::kCancelled);
    // Its number is taken: so ends the receive that would have met it.
    EXPECT_EQ(endOf(recv(*to, 4000)), Code::kCancelled);
    EXPECT_TRUE(to->isAsExpected());
  }
  expectOneMore(*from, *to);
}

TEST_P(CommunicatorFaultTest, CancelsAReceiveThatNobodySendsTo) {
  auto from = memory(a(), 4000, 1);
  auto to = memory(b(), 4000, 2);
  for (const Protocol protocol : kEveryProtocol) {
    const auto received = recv(*to, 4000);
    ASSERT_OK(received.status());
    received->cancel();
    EXPECT_EQ(endOf(received), Code::kCancelled);
    EXPECT_EQ(endOf(send(*from, 4000, protocol)), Code::kCancelled);
    EXPECT_TRUE(to->isAsExpected());
  }
  expectOneMore(*from, *to);
}

// More than the lane has slots: those in the queue end at once, those under way by their answer.
TEST_P(CommunicatorFaultTest, CancelsWhatWaitsInTheQueue) {
  constexpr size_t kMessages = 50;
  auto from = memory(a(), 4000, 1);
  auto to = memory(b(), 4000, 2);
  std::vector<Transfer> sent;
  std::vector<Transfer> received;
  for (size_t i = 0; i < kMessages; ++i) sent.push_back(MUST(send(*from, 100 + i)));
  for (size_t i = 1; i < kMessages; i += 2) sent[i].cancel();
  for (size_t i = 1; i < kMessages; i += 2) EXPECT_EQ(sent[i].wait(kSoon).code(), Code::kCancelled);
  for (size_t i = 0; i < kMessages; ++i) received.push_back(MUST(recv(*to, 100 + i)));
  for (size_t i = 0; i < kMessages; ++i) {
    const Code expected = i % 2 == 0 ? Code::kOk : Code::kCancelled;
    EXPECT_EQ(received[i].wait(kSoon).code(), expected) << i;
    EXPECT_EQ(sent[i].wait(kSoon).code(), expected) << i;
  }
  std::memcpy(to->shadow(), from->shadow(), 100 + kMessages - 2);
  EXPECT_TRUE(to->isAsExpected());
  expectOneMore(*from, *to);
}

// Cancelled at any moment, by either side, both ends end, alike, and the lane goes on.
TEST_P(CommunicatorFaultTest, CancelsAtAnyMoment) {
  constexpr size_t kBytes = 2 << 20;
  auto from = memory(a(), kBytes, 1);
  auto to = memory(b(), kBytes, 2);
  size_t cancelled = 0;
  for (int round = 0; round < 40; ++round) {
    const Protocol protocol = kEveryProtocol[1 + round % 3];
    Result<Transfer> sent = Status(Code::kInternal, "");
    std::thread sender([&] {
      sent = send(*from, kBytes, protocol);
      if (sent.isOk() && round % 2 == 0) sent->cancel();
    });
    const auto received = recv(*to, kBytes);
    ASSERT_OK(received.status());
    if (round % 2 == 1) received->cancel();
    sender.join();
    const Code atSender = endOf(sent);
    const Code atReceiver = endOf(received);
    EXPECT_TRUE(atReceiver == Code::kOk || atReceiver == Code::kCancelled) << round;
    EXPECT_EQ(atSender, atReceiver) << round << ": " << sent->status().toString();
    cancelled += atReceiver == Code::kCancelled;
  }
  EXPECT_GT(cancelled, 0u);
  std::memcpy(to->shadow(), to->data(), kBytes);  // undefined after a cancel
  EXPECT_TRUE(to->isAsExpected());
  expectOneMore(*from, *to);
}

TEST_P(CommunicatorFaultTest, TheEndOfOneSideEndsTheOther) {
  auto from = memory(a(), 4000, 1);
  auto to = memory(b(), 4000, 2);
  std::vector<Transfer> pending;
  for (int i = 0; i < 40; ++i) {
    pending.push_back(MUST(recv(*to, 4000)));
    pending.push_back(MUST(pair_.one->send(0, to->region(), 0, 4000)));
  }
  std::atomic<int> told{0};
  for (const Transfer& transfer : pending)
    transfer.onEnd([&](const Status& status) { told += status.code() == Code::kClosed ? 1 : 100; });
  pair_.zero.reset();
  for (const Transfer& transfer : pending) EXPECT_EQ(transfer.wait(kSoon).code(), Code::kClosed);
  EXPECT_EQ(recv(*to, 4000).status().code(), Code::kClosed);
  // The peers are as they were: a new communicator works.
  pair_.one.reset();
  // Waiters may go on before the callback is called.
  EXPECT_TRUE(soon([&] { return told.load() >= 80; }));
  EXPECT_EQ(told.load(), 80) << "each transfer ends once";
  pair_.meet({});
  expectOneMore(*from, *to);
}

TEST_P(CommunicatorFaultTest, DestructionEndsWhatIsPending) {
  auto to = memory(b(), 4000, 2);
  auto from = memory(a(), 4000, 1);
  const auto received = recv(*to, 4000);
  const auto sent = send(*from, 3000);  // other length: it may have met, but does not fit
  pair_.one.reset();
  ASSERT_OK(received.status());
  EXPECT_TRUE(received->done());
  const Code end = endOf(sent);
  EXPECT_TRUE(end == Code::kClosed || end == Code::kSizeMismatch);
  EXPECT_TRUE(to->isAsExpected());
}

TEST_P(CommunicatorFaultTest, TheEndOfThePeerEndsEverything) {
  constexpr size_t kBytes = 1 << 20;
  auto from = memory(a(), kBytes, 1);
  auto to = memory(b(), kBytes, 2);
  std::vector<Transfer> pending;
  for (int i = 0; i < 30; ++i) pending.push_back(MUST(recv(*to, kBytes)));
  for (int i = 0; i < 5; ++i) pending.push_back(MUST(send(*from, kBytes)));
  pair_.contexts.toB.close();
  for (const Transfer& transfer : pending) {
    const Code end = transfer.wait(kSoon).code();
    EXPECT_TRUE(end == Code::kOk || end == Code::kClosed || end == Code::kPeerLost)
        << transfer.status().toString();
  }
  EXPECT_EQ(send(*from, 1).status().code(), Code::kClosed);
  const Code later = endOf(recv(*to, 1));
  EXPECT_TRUE(later == Code::kPeerLost || later == Code::kClosed);
  std::memcpy(to->shadow(), to->data(), kBytes);
}

// Not what the contract asks for, but it must not hang or crash.
TEST_P(CommunicatorFaultTest, SurvivesTheEndOfItsContext) {
  std::vector<std::byte> some(8192);
  const auto received = pair_.one->recv(0, std::span(some));
  const auto sent = pair_.one->send(0, std::span<const std::byte>(some));
  pair_.contexts.b.reset();
  EXPECT_EQ(endOf(received), Code::kClosed);
  EXPECT_EQ(endOf(sent), Code::kClosed);
  EXPECT_EQ(pair_.one->recv(0, std::span(some)).status().code(), Code::kClosed);
}

TEST_P(CommunicatorFaultTest, RegionsStayUntilTheirMessagesEnded) {
  auto from = memory(a(), 8192, 1);
  auto to = memory(b(), 8192, 2);
  const auto sent = send(*from, 8192);
  ASSERT_OK(sent.status());
  // Nobody receives: the region is in use.
  EXPECT_EQ(a().unregister(from->region(), 50ms).code(), Code::kTimeout);
  EXPECT_EQ(send(*from, 8).status().code(), Code::kClosed);
  sent->cancel();
  EXPECT_EQ(endOf(sent), Code::kCancelled);
  EXPECT_OK(a().unregister(from->releaseRegion(), kSoon));
}

// A region that was received from stays imported at the receiver; its owner gets it back anyway.
TEST_P(CommunicatorFaultTest, ImportsDoNotHoldRegionsBack) {
  auto to = memory(b(), 100'000, 2);
  for (uint64_t round = 0; round < 3; ++round) {
    auto from = memory(a(), 100'000, 3 + round);
    expectOneMore(*from, *to);
    EXPECT_OK(a().unregister(from->releaseRegion(), kSoon));
  }
}

TEST_P(CommunicatorFaultTest, RefusesWrongArguments) {
  auto from = memory(a(), 8192, 1);
  auto other = memory(b(), 8192, 2);
  const auto code = [&](Rank rank, const Region& region, uint64_t offset, uint64_t bytes) {
    return pair_.zero->send(rank, region, offset, bytes).status().code();
  };
  EXPECT_EQ(code(2, from->region(), 0, 8), Code::kInvalidArgument) << "no such rank";
  EXPECT_EQ(code(0, from->region(), 0, 8), Code::kInvalidArgument) << "the own rank";
  EXPECT_EQ(code(1, Region(), 0, 8), Code::kInvalidArgument) << "an empty region";
  EXPECT_EQ(code(1, from->region(), 0, 8193), Code::kInvalidArgument) << "outside";
  EXPECT_EQ(code(1, from->region(), 8192, 1), Code::kInvalidArgument) << "outside";
  EXPECT_EQ(code(1, from->region(), 8, UINT64_MAX), Code::kInvalidArgument) << "wraps around";
  EXPECT_EQ(code(1, other->region(), 0, 8), Code::kInvalidArgument) << "of another context";
  MessageOptions eager;
  eager.protocol = Protocol::kEager;
  EXPECT_EQ(pair_.zero->send(1, from->region(), 0, 4097, eager).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(pair_.zero->sendBatch(1, {}).status().code(), Code::kInvalidArgument);
  const MessageBlock blocks[] = {{&from->region(), 0, 8}, {nullptr, 0, 8}};
  EXPECT_EQ(pair_.zero->sendBatch(1, blocks).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(pair_.zero->group().post().status().code(), Code::kInvalidArgument);
  EXPECT_NE(pair_.zero->send(7, from->region(), 0, 8).status().message().find("rank 7"),
            std::string::npos);
  // Nothing of it was posted.
  expectOneMore(*from, *other);
}

// "For ever" is a time to wait, no moment of the past.
TEST(CommunicatorPatience, MayBeEndless) {
  constexpr auto kForEver = std::chrono::nanoseconds::max();
  CommunicatorOptions options;
  options.timeout = kForEver;
  std::vector<std::byte> in(8);
  const std::vector<std::byte> out(8, std::byte{1});
  CommunicatorPair pair(configFor(kMapped), options);
  const auto received = MUST(pair.one->recv(0, std::span(in)));
  std::atomic<bool> over{false};
  Status end;
  std::thread waiter([&] {
    end = received.wait(kForEver);
    over = true;
  });
  // A wait that ends by itself has ended by now.
  EXPECT_EQ(pair.zero->recv(1, std::span(in))->wait(100ms).code(), Code::kTimeout);
  EXPECT_FALSE(over.load());
  EXPECT_EQ(endOf(pair.zero->send(1, std::span<const std::byte>(out))), Code::kOk);
  waiter.join();
  EXPECT_OK(end);
  EXPECT_EQ(in, out);
}

// Processor time of this process so far.
std::chrono::microseconds processorTime() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto of = [](const timeval& time) {
    return std::chrono::seconds(time.tv_sec) + std::chrono::microseconds(time.tv_usec);
  };
  return of(used.ru_utime) + of(used.ru_stime);
}

// A rank whose progress thread stands still owes an answer that only it could give. The other one
// sleeps meanwhile: before it calls it silent, and afterwards. What this side alone writes, a get,
// ends then; a put is under way until the other side has answered or ended.
class CommunicatorSilenceTest : public testing::TestWithParam<RouteCase> {};

INSTANTIATE_TEST_SUITE_P(Routes, CommunicatorSilenceTest, testing::Values(kRing, kTcp), routeName);

TEST_P(CommunicatorSilenceTest, CostsNoProcessorTime) {
  Config hearsBadly = configFor(GetParam());
  hearsBadly.peerTimeout = 1s;
  CommunicatorPair pair(ContextPair(hearsBadly, configFor(GetParam())));
  constexpr size_t kBytes = 1 << 20;
  TestMemory to(*pair.contexts.a, kBytes, GetParam().shared, Access::kRemoteReadWrite, 1);
  TestMemory from(*pair.contexts.b, kBytes, GetParam().shared, Access::kRemoteReadWrite, 2);
  MessageOptions get;
  get.protocol = Protocol::kGet;
  const auto exchange = [&] {
    const auto sent = pair.one->send(0, from.region(), 0, kBytes, get);
    EXPECT_OK(sent.status());
    return MUST(pair.zero->recv(1, to.region(), 0, kBytes));
  };
  ASSERT_OK(exchange().wait(kSoon));  // everything is imported
  std::memcpy(to.shadow(), from.shadow(), kBytes);
  TestMemory out(*pair.contexts.a, kBytes, GetParam().shared, Access::kRemoteReadWrite, 3);
  TestMemory in(*pair.contexts.b, kBytes, GetParam().shared, Access::kRemoteReadWrite, 4);
  const RemoteRegion far = MUST(pair.contexts.toB.importRegion(in.region().share()));
  const Block block{&out.region(), 0, &far, 0, kBytes};
  ASSERT_OK(MUST(put(pair.contexts.toB, {&block, 1})).wait(kSoon));

  StandingCallback stands(pair.contexts.toA.core()->progress());
  const auto received = exchange();
  const auto written = MUST(put(pair.contexts.toB, {&block, 1}));
  // Until it is called silent, and a second more: only the time is measured, nothing waits for it.
  std::this_thread::sleep_for(20ms);
  const auto before = processorTime();
  const auto begun = std::chrono::steady_clock::now();
  while (pair.contexts.toB.state() != "silent" && std::chrono::steady_clock::now() - begun < kSoon)
    std::this_thread::sleep_for(10ms);
  std::this_thread::sleep_for(1s);
  const auto used = processorTime() - before;
  const auto passed = std::chrono::steady_clock::now() - begun;
  EXPECT_EQ(pair.contexts.toB.state(), "silent");
  EXPECT_TRUE(received.done());
  EXPECT_FALSE(written.done()) << "the other side may still write";
  EXPECT_LT(used * 4, passed) << used.count() << " us";
  stands.goOn();
  EXPECT_EQ(received.wait(kSoon).code(), Code::kPeerSilent);
  EXPECT_NE(written.wait(kSoon).code(), Code::kTimeout);
  // The thread sanitizer does not see that the far progress thread wrote before it answered.
  ASSERT_OK(pair.contexts.toA.core()->progress().call([] {}));
  std::memcpy(to.shadow(), to.data(), kBytes);  // undefined after a failure
  std::memcpy(in.shadow(), in.data(), kBytes);
}

// The receive has its bytes: whether the sender knows that already is the sender's affair.
TEST_P(CommunicatorSilenceTest, AReceiveEndsWithoutItsSender) {
  CommunicatorPair pair(ContextPair(configFor(GetParam()), configFor(GetParam())));
  constexpr size_t kBytes = 1000;
  TestMemory to(*pair.contexts.a, kBytes, GetParam().shared, Access::kRemoteReadWrite, 1);
  TestMemory from(*pair.contexts.b, kBytes, GetParam().shared, Access::kRemoteReadWrite, 2);
  MessageOptions eager;
  eager.protocol = Protocol::kEager;
  const auto received = MUST(pair.zero->recv(1, to.region(), 0, kBytes));
  StandingCallback stands(pair.contexts.toA.core()->progress());
  const auto sent = MUST(pair.one->send(0, from.region(), 0, kBytes, eager));
  EXPECT_OK(received.wait(kSoon));
  EXPECT_FALSE(sent.done());
  stands.goOn();
  EXPECT_OK(sent.wait(kSoon));
  std::memcpy(to.shadow(), from.shadow(), kBytes);
}

// With PEERLANE_STRICT no message is staged behind the user's back.
TEST(CommunicatorStrict, RefusesToStage) {
  Config config = configFor(kSelf);
  config.strict = true;
  CommunicatorPair pair(config);
  TestMemory hidden(*pair.contexts.a, 8192, false, Access::kLocal, 1);
  TestMemory to(*pair.contexts.b, 8192, false, Access::kRemoteReadWrite, 2);
  EXPECT_EQ(pair.zero->send(1, hidden.region(), 0, 8192).status().code(), Code::kNotSupported);
  MessageOptions ring;
  ring.protocol = Protocol::kRing;
  const auto sent = pair.zero->send(1, hidden.region(), 0, 8192, ring);
  EXPECT_EQ(endOf(pair.one->recv(0, to.region(), 0, 8192)), Code::kOk);
  EXPECT_EQ(endOf(sent), Code::kOk);
  std::memcpy(to.shadow(), hidden.shadow(), 8192);
  EXPECT_TRUE(to.isAsExpected());
}

// In one process both memories may be the same.
TEST(CommunicatorSelf, RefusesToCopyMemoryOntoItself) {
  CommunicatorPair pair(kSelf);
  TestMemory from(*pair.contexts.a, 100'000, false, Access::kRemoteReadWrite, 1);
  const auto sent = pair.zero->send(1, from.region(), 0, 50'000);
  const Region same =
      MUST(pair.contexts.b->registerRegion(from.data(), 100'000, Access::kRemoteReadWrite));
  EXPECT_EQ(endOf(pair.one->recv(0, same, 10'000, 50'000)), Code::kInvalidArgument);
  EXPECT_EQ(endOf(sent), Code::kInvalidArgument);
  EXPECT_TRUE(from.isAsExpected());
  EXPECT_OK(pair.contexts.b->unregister(same, kSoon));
}

}  // namespace
}  // namespace peerlane
