// SPDX-License-Identifier: Apache-2.0
//
// Send and receive over every route and by every protocol: each byte arrives, no other changes,
// messages meet in the order of posting. What goes wrong has a file of its own.
#include <algorithm>
#include <atomic>
#include <deque>
#include <thread>

#include "tests/channel/communicator/communicator_pair.h"

namespace peerlane {
namespace {

using namespace std::chrono_literals;

class CommunicatorMessageTest : public testing::TestWithParam<RouteCase> {
 protected:
  CommunicatorMessageTest() : pair_(GetParam()) {}
  std::unique_ptr<TestMemory> memory(Context& context, size_t bytes, uint64_t seed,
                                     Access access = Access::kRemoteReadWrite) {
    return std::make_unique<TestMemory>(context, bytes, GetParam().shared, access, seed);
  }
  Context& a() { return *pair_.contexts.a; }
  Context& b() { return *pair_.contexts.b; }

  CommunicatorPair pair_;
};

INSTANTIATE_TEST_SUITE_P(Routes, CommunicatorMessageTest, everyRoute(), routeName);

TEST_P(CommunicatorMessageTest, MovesEverySizeByEveryProtocol) {
  constexpr size_t kRoom = (size_t{8} << 20) + 64;
  auto from = memory(a(), kRoom, 1);
  auto to = memory(b(), kRoom, 2);
  for (const Protocol protocol :
       {Protocol::kAuto, Protocol::kEager, Protocol::kGet, Protocol::kPut, Protocol::kRing}) {
    for (const size_t bytes : {size_t{0}, size_t{1}, size_t{8}, size_t{4095}, size_t{4096},
                               size_t{4097}, size_t{1} << 20, size_t{8} << 20}) {
      if (protocol == Protocol::kEager && bytes > 4096) continue;
      // Other bytes at other places each time.
      const size_t near = bytes % 61;
      const size_t far = static_cast<size_t>(protocol) * 7;
      for (size_t i = 0; i < bytes; ++i)
        from->data()[near + i] = from->shadow()[near + i] =
            static_cast<std::byte>(i * 13 + i / 251 + static_cast<size_t>(protocol) + bytes);
      MessageOptions options;
      options.protocol = protocol;
      const auto receive = pair_.one->recv(0, to->region(), far, bytes);
      const auto send = pair_.zero->send(1, from->region(), near, bytes, options);
      ASSERT_EQ(endOf(send), Code::kOk)
          << bytes << " by " << static_cast<int>(protocol) << ": " << send->status().toString();
      ASSERT_EQ(endOf(receive), Code::kOk) << bytes << " by " << static_cast<int>(protocol);
      std::memcpy(to->shadow() + far, from->shadow() + near, bytes);
      ASSERT_TRUE(to->isAsExpected()) << bytes << " by " << static_cast<int>(protocol);
    }
  }
  EXPECT_TRUE(from->isAsExpected());
}

TEST_P(CommunicatorMessageTest, SaysWhichProtocolItTook) {
  auto from = memory(a(), 8192, 1);
  auto to = memory(b(), 8192, 2);
  const auto pass = [&](uint64_t bytes, Protocol protocol) {
    MessageOptions options;
    options.protocol = protocol;
    const auto send = pair_.zero->send(1, from->region(), 0, bytes, options);
    EXPECT_EQ(endOf(pair_.one->recv(0, to->region(), 0, bytes)), Code::kOk);
    EXPECT_EQ(endOf(send), Code::kOk);
  };
  pass(4096, Protocol::kAuto);
  pass(4097, Protocol::kAuto);
  pass(4097, Protocol::kPut);
  pass(100, Protocol::kGet);
  pass(100, Protocol::kRing);
  EXPECT_NE(pair_.zero->explain(1).find("begun: eager 1, get 2, put 1, ring 1"), std::string::npos)
      << pair_.zero->explain(1);
  EXPECT_NE(pair_.one->explain(0).find("received: eager 1, get 2, put 1, ring 1"),
            std::string::npos)
      << pair_.one->explain(0);
  EXPECT_NE(pair_.zero->explain(1).find(GetParam().link), std::string::npos);
  // The one who copied says by which engine.
  const std::string series = "peerlane_bytes_total{link=\"" + std::string(GetParam().link) +
                             "\",engine=\"" + GetParam().engine + "\",direction=\"recv\"} 4197\n";
  EXPECT_NE(b().metrics().find(series), std::string::npos) << b().metrics();
}

// Far more messages than slots, of mixed protocols, none of them waited for.
TEST_P(CommunicatorMessageTest, KeepsTheOrderOfManyMessages) {
  constexpr size_t kMessages = 1000;
  constexpr size_t kBytes = 6000;
  auto from = memory(a(), kMessages * 8, 1);
  auto big = memory(a(), kBytes, 3);
  auto to = memory(b(), kMessages * 8, 2);
  auto bigTo = memory(b(), kBytes, 4);
  std::vector<Transfer> transfers;
  const Protocol kinds[] = {Protocol::kEager, Protocol::kGet, Protocol::kEager, Protocol::kPut,
                            Protocol::kRing};
  for (size_t i = 0; i < kMessages; ++i) {
    MessageOptions options;
    options.protocol = kinds[i % 5];
    transfers.push_back(i % 50 == 49
                            ? MUST(pair_.zero->send(1, big->region(), 0, kBytes))
                            : MUST(pair_.zero->send(1, from->region(), i * 8, 8, options)));
  }
  for (size_t i = 0; i < kMessages; ++i)
    transfers.push_back(i % 50 == 49 ? MUST(pair_.one->recv(0, bigTo->region(), 0, kBytes))
                                     : MUST(pair_.one->recv(0, to->region(), i * 8, 8)));
  for (const Transfer& transfer : transfers) ASSERT_OK(transfer.wait(kSoon));
  for (size_t i = 0; i < kMessages; ++i)
    if (i % 50 != 49) std::memcpy(to->shadow() + i * 8, from->shadow() + i * 8, 8);
  std::memcpy(bigTo->shadow(), big->shadow(), kBytes);
  EXPECT_TRUE(to->isAsExpected());
  EXPECT_TRUE(bigTo->isAsExpected());
}

TEST_P(CommunicatorMessageTest, GoesBothWaysAtOnce) {
  constexpr size_t kBytes = 300'000;
  constexpr int kRounds = 20;
  auto fromA = memory(a(), kBytes, 1);
  auto toA = memory(a(), kBytes, 2);
  auto fromB = memory(b(), kBytes, 3);
  auto toB = memory(b(), kBytes, 4);
  const auto rounds = [](Communicator& self, Rank other, TestMemory& from, TestMemory& to) {
    for (int i = 0; i < kRounds; ++i) {
      const auto send = self.send(other, from.region(), 0, kBytes);
      const auto receive = self.recv(other, to.region(), 0, kBytes);
      ASSERT_EQ(endOf(receive), Code::kOk);
      ASSERT_EQ(endOf(send), Code::kOk);
    }
  };
  std::thread other([&] { rounds(*pair_.one, 0, *fromB, *toB); });
  rounds(*pair_.zero, 1, *fromA, *toA);
  other.join();
  std::memcpy(toA->shadow(), fromB->shadow(), kBytes);
  std::memcpy(toB->shadow(), fromA->shadow(), kBytes);
  EXPECT_TRUE(toA->isAsExpected());
  EXPECT_TRUE(toB->isAsExpected());
}

// Several threads on each side; which message meets which receive is chance, but each arrives once
// and whole.
TEST_P(CommunicatorMessageTest, TakesPostsOfManyThreads) {
  constexpr size_t kThreads = 4;
  constexpr size_t kMessages = 60;  // per thread
  constexpr size_t kBytes = 5000;
  auto from = memory(a(), kThreads * kMessages * kBytes, 1);
  auto to = memory(b(), kThreads * kMessages * kBytes, 2);
  // A message is filled with its number.
  for (size_t message = 0; message < kThreads * kMessages; ++message)
    for (size_t i = 0; i < kBytes; i += 4) {
      const auto number = static_cast<uint32_t>(message);
      std::memcpy(from->data() + message * kBytes + i, &number, 4);
    }
  std::atomic<size_t> failed{0};
  const auto work = [&](bool sends, size_t thread) {
    std::deque<Transfer> pending;
    for (size_t i = 0; i < kMessages; ++i) {
      const size_t offset = (thread * kMessages + i) * kBytes;
      auto transfer = sends ? pair_.zero->send(1, from->region(), offset, kBytes)
                            : pair_.one->recv(0, to->region(), offset, kBytes);
      pending.push_back(MUST(std::move(transfer)));
      if (pending.size() < 8) continue;
      failed += !pending.front().wait(kSoon).isOk();
      pending.pop_front();
    }
    for (const Transfer& transfer : pending) failed += !transfer.wait(kSoon).isOk();
  };
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back(work, true, t);
    threads.emplace_back(work, false, t);
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed.load(), 0u);
  std::vector<size_t> seen(kThreads * kMessages);
  for (size_t message = 0; message < kThreads * kMessages; ++message) {
    uint32_t first = 0;
    std::memcpy(&first, to->data() + message * kBytes, 4);
    ASSERT_LT(first, seen.size());
    ++seen[first];
    for (size_t i = 0; i < kBytes; i += 4)
      ASSERT_EQ(std::memcmp(to->data() + message * kBytes + i, &first, 4), 0);
    // For the check of the guards.
    std::memcpy(to->shadow() + message * kBytes, to->data() + message * kBytes, kBytes);
    std::memcpy(from->shadow() + message * kBytes, from->data() + message * kBytes, kBytes);
  }
  EXPECT_EQ(std::count(seen.begin(), seen.end(), 1u), static_cast<ptrdiff_t>(seen.size()));
  EXPECT_TRUE(to->isAsExpected());
}

TEST_P(CommunicatorMessageTest, MovesABatchAsOneTransfer) {
  constexpr size_t kBlocks = 128;
  constexpr size_t kBytes = 20'000;
  auto from = memory(a(), kBlocks * kBytes, 1);
  auto to = memory(b(), kBlocks * kBytes, 2);
  std::vector<MessageBlock> out;
  std::vector<MessageBlock> in;
  for (size_t i = 0; i < kBlocks; ++i) {
    out.push_back({&from->region(), i * kBytes, kBytes - i});
    in.push_back({&to->region(), (kBlocks - 1 - i) * kBytes, kBytes - i});
    std::memcpy(to->shadow() + (kBlocks - 1 - i) * kBytes, from->shadow() + i * kBytes, kBytes - i);
  }
  const auto send = pair_.zero->sendBatch(1, out);
  const auto receive = pair_.one->recvBatch(0, in);
  EXPECT_EQ(endOf(send), Code::kOk);
  EXPECT_EQ(endOf(receive), Code::kOk);
  EXPECT_TRUE(to->isAsExpected());
}

TEST_P(CommunicatorMessageTest, TakesMemoryThatIsNotRegistered) {
  std::vector<std::byte> from(100'000);
  std::vector<std::byte> to(100'000);
  for (const size_t bytes : {size_t{0}, size_t{16}, size_t{4096}, size_t{100'000}}) {
    for (const Protocol protocol : {Protocol::kAuto, Protocol::kRing}) {
      for (size_t i = 0; i < bytes; ++i) {
        from[i] = static_cast<std::byte>(i * 7 + bytes);
        to[i] = std::byte{0xee};
      }
      MessageOptions options;
      options.protocol = protocol;
      const auto send = pair_.zero->send(1, std::span<const std::byte>(from).first(bytes), options);
      const auto receive = pair_.one->recv(0, std::span(to).first(bytes));
      ASSERT_EQ(endOf(send), Code::kOk);
      ASSERT_EQ(endOf(receive), Code::kOk);
      ASSERT_TRUE(std::equal(to.begin(), to.begin() + static_cast<ptrdiff_t>(bytes), from.begin()));
    }
  }
  // More buffers than are kept, each used twice.
  std::vector<std::vector<std::byte>> many(50, std::vector<std::byte>(5000));
  for (int round = 0; round < 2; ++round)
    for (size_t i = 0; i < many.size(); ++i) {
      std::fill(many[i].begin(), many[i].end(),
                static_cast<std::byte>(i + static_cast<size_t>(round)));
      const auto send = pair_.zero->send(1, std::span<const std::byte>(many[i]));
      const auto receive = pair_.one->recv(0, std::span(to).first(5000));
      ASSERT_EQ(endOf(send), Code::kOk);
      ASSERT_EQ(endOf(receive), Code::kOk);
      ASSERT_TRUE(std::equal(many[i].begin(), many[i].end(), to.begin()));
    }
}

// The sender's region may not be read by peers, the receiver's not be written: the ring takes over.
TEST_P(CommunicatorMessageTest, StagesWhatPeersMayNotReach) {
  constexpr size_t kBytes = 3'000'001;
  auto from = memory(a(), kBytes, 1, Access::kLocal);
  auto to = memory(b(), kBytes, 2, Access::kLocal);
  const auto send = pair_.zero->send(1, from->region(), 0, kBytes);
  const auto receive = pair_.one->recv(0, to->region(), 0, kBytes);
  EXPECT_EQ(endOf(send), Code::kOk);
  EXPECT_EQ(endOf(receive), Code::kOk);
  std::memcpy(to->shadow(), from->shadow(), kBytes);
  EXPECT_TRUE(to->isAsExpected());
  EXPECT_NE(pair_.one->explain(0).find("ring 1"), std::string::npos);
  // Asked for by name, a protocol is that or an error.
  MessageOptions options;
  options.protocol = Protocol::kGet;
  EXPECT_EQ(pair_.zero->send(1, from->region(), 0, kBytes, options).status().code(),
            Code::kPermissionDenied);
  options.protocol = Protocol::kPut;
  const auto put = pair_.zero->send(1, from->region(), 0, kBytes, options);
  const auto into = pair_.one->recv(0, to->region(), 0, kBytes);
  EXPECT_EQ(endOf(put), Code::kPermissionDenied);
  EXPECT_EQ(endOf(into), Code::kPermissionDenied);
  EXPECT_TRUE(to->isAsExpected());
}

TEST_P(CommunicatorMessageTest, FollowsAHostStream) {
  constexpr size_t kBytes = 50'000;
  auto from = memory(a(), kBytes, 1);
  auto to = memory(b(), 2 * kBytes, 2);
  auto stream = MUST(HostStream::create());
  MessageOptions options;
  options.stream = stream.get();
  // On one stream the second receive begins when the first has ended.
  const auto first = pair_.one->recv(0, to->region(), 0, kBytes, options);
  const auto second = pair_.one->recv(0, to->region(), kBytes, kBytes, options);
  const auto sendFirst = pair_.zero->send(1, from->region(), 0, kBytes);
  const auto sendSecond = pair_.zero->send(1, from->region(), 0, kBytes);
  EXPECT_EQ(endOf(sendFirst), Code::kOk);
  EXPECT_EQ(endOf(sendSecond), Code::kOk);
  EXPECT_EQ(endOf(second), Code::kOk);
  EXPECT_TRUE(first->done());
  std::memcpy(to->shadow(), from->shadow(), kBytes);
  std::memcpy(to->shadow() + kBytes, from->shadow(), kBytes);
  EXPECT_TRUE(to->isAsExpected());
}

// A transfer's descriptor and callback work here, too.
TEST_P(CommunicatorMessageTest, TellsItsEnd) {
  auto from = memory(a(), 100, 1);
  auto to = memory(b(), 100, 2);
  const auto receive = MUST(pair_.one->recv(0, to->region(), 0, 100));
  EXPECT_EQ(receive.status().code(), Code::kTryAgain);
  EXPECT_EQ(receive.wait(1ms).code(), Code::kTimeout);
  std::promise<Code> told;
  receive.onEnd([&](const Status& status) { told.set_value(status.code()); });
  EXPECT_EQ(endOf(pair_.zero->send(1, from->region(), 0, 100)), Code::kOk);
  EXPECT_EQ(told.get_future().get(), Code::kOk);
}

// Two communicators on the same peers do not mix.
TEST_P(CommunicatorMessageTest, KeepsCommunicatorsApart) {
  auto firstZero = std::move(pair_.zero);
  auto firstOne = std::move(pair_.one);
  pair_.meet({});
  auto from = memory(a(), 200, 1);
  auto to = memory(b(), 200, 2);
  const auto second = pair_.zero->send(1, from->region(), 100, 100);
  const auto first = firstZero->send(1, from->region(), 0, 100);
  EXPECT_EQ(endOf(firstOne->recv(0, to->region(), 0, 100)), Code::kOk);
  EXPECT_EQ(endOf(pair_.one->recv(0, to->region(), 100, 100)), Code::kOk);
  EXPECT_EQ(endOf(first), Code::kOk);
  EXPECT_EQ(endOf(second), Code::kOk);
  std::memcpy(to->shadow(), from->shadow(), 200);
  EXPECT_TRUE(to->isAsExpected());
}

}  // namespace
}  // namespace peerlane
