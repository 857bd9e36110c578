// SPDX-License-Identifier: Apache-2.0
//
// Messages in pieces whose two sides name another number of them: both end, and the messages behind
// meet as they were posted.
#include <algorithm>
#include <deque>
#include <random>
#include <vector>

#include "tests/channel/communicator/communicator_pair.h"

namespace peerlane {
namespace {

// One side's message: so many pieces of so many bytes, and what is in them.
class Pieces {
 public:
  Pieces(size_t count, size_t bytes, uint8_t fill)
      : bytes_(bytes), memory_(count * bytes, std::byte{fill}), count_(count) {}

  void send(Communicator& communicator) {
    auto group = communicator.group();
    for (size_t i = 0; i < count_; ++i) group.send(1, std::span<const std::byte>(piece(i)));
    transfer_ = MUST(group.asOneMessage().post());
  }
  void recv(Communicator& communicator) {
    auto group = communicator.group();
    for (size_t i = 0; i < count_; ++i) group.recv(0, piece(i));
    transfer_ = MUST(group.asOneMessage().post());
  }
  Status end() const { return transfer_.wait(kSoon); }
  void cancel() { transfer_.cancel(); }
  bool holds(uint8_t fill) const {
    return std::all_of(memory_.begin(), memory_.end(),
                       [&](std::byte byte) { return byte == std::byte{fill}; });
  }
  size_t count() const { return count_; }

 private:
  std::span<std::byte> piece(size_t i) { return std::span(memory_).subspan(i * bytes_, bytes_); }
  size_t bytes_;
  std::vector<std::byte> memory_;
  size_t count_;
  Transfer transfer_;
};

class CommunicatorPiecesTest : public testing::TestWithParam<RouteCase> {
 protected:
  CommunicatorPair pair_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Routes, CommunicatorPiecesTest, everyRoute(), routeName);

TEST_P(CommunicatorPiecesTest, AnotherNumberEndsBothAndNothingElse) {
  for (const auto& [sent, wanted] : std::vector<std::pair<size_t, size_t>>{
           {3, 2}, {2, 3}, {1, 3}, {3, 1}, {20, 5}, {5, 20}, {40, 1}, {1, 40}, {17, 16}}) {
    for (const size_t bytes : {size_t{16}, size_t{100'000}}) {
      for (const bool isSentFirst : {true, false}) {
        std::deque<Pieces> out, in;
        uint8_t fill = 1;
        for (const auto& [here, there] :
             {std::pair{size_t{1}, size_t{1}}, {sent, wanted}, {1, 1}, {4, 4}, {2, 2}}) {
          out.emplace_back(here, bytes, fill++);
          in.emplace_back(there, bytes, 0);
        }
        if (isSentFirst)
          for (Pieces& pieces : out) pieces.send(*pair_.zero);
        for (Pieces& pieces : in) pieces.recv(*pair_.one);
        if (!isSentFirst)
          for (Pieces& pieces : out) pieces.send(*pair_.zero);
        for (size_t i = 0; i < out.size(); ++i) {
          const Code expected = i == 1 ? Code::kSizeMismatch : Code::kOk;
          const Status sentEnd = out[i].end();
          const Status receivedEnd = in[i].end();
          ASSERT_EQ(sentEnd.code(), expected) << sent << " and " << wanted << ": message " << i;
          ASSERT_EQ(receivedEnd.code(), expected) << sent << " and " << wanted << ": message " << i;
          ASSERT_TRUE(in[i].holds(i == 1 ? 0 : static_cast<uint8_t>(i + 1))) << i;
          if (i != 1) continue;
          EXPECT_NE(sentEnd.message().find("pieces"), std::string::npos) << sentEnd.toString();
          EXPECT_NE(receivedEnd.message().find("pieces"), std::string::npos)
              << receivedEnd.toString();
        }
      }
    }
  }
}

// Whatever the two sides post, the n-th of one is met by the n-th of the other.
TEST_P(CommunicatorPiecesTest, RandomNumbersOnBothSides) {
  std::minstd_rand random(11);
  const auto countOf = [&] { return random() % 3 == 0 ? 1 + random() % 23 : 1 + random() % 2; };
  for (int round = 0; round < 20; ++round) {
    std::deque<Pieces> out, in;
    for (size_t i = 0; i < 40; ++i) {
      const size_t bytes = random() % 4 == 0 ? 20'000 : 64;
      const size_t count = countOf();
      out.emplace_back(count, bytes, static_cast<uint8_t>(i + 1));
      in.emplace_back(random() % 2 == 0 ? countOf() : count, bytes, 0);
    }
    // Neither side is ahead for long.
    for (size_t sent = 0, received = 0; sent < out.size() || received < in.size();) {
      if (received == in.size() || (sent < out.size() && random() % 2 == 0))
        out[sent++].send(*pair_.zero);
      else
        in[received++].recv(*pair_.one);
    }
    for (size_t i = 0; i < out.size(); ++i) {
      const bool meets = out[i].count() == in[i].count();
      const Code expected = meets ? Code::kOk : Code::kSizeMismatch;
      const Status sentEnd = out[i].end();
      const Status receivedEnd = in[i].end();
      ASSERT_EQ(sentEnd.code(), expected) << round << ", " << i << ": " << sentEnd.toString();
      ASSERT_EQ(receivedEnd.code(), expected)
          << round << ", " << i << ": " << receivedEnd.toString();
      ASSERT_TRUE(in[i].holds(meets ? static_cast<uint8_t>(i + 1) : 0)) << i;
    }
  }
}

// Whatever is cancelled meanwhile: everything ends, and what is posted afterwards meets.
TEST_P(CommunicatorPiecesTest, RandomNumbersAndCancels) {
  std::minstd_rand random(5);
  for (int round = 0; round < 40; ++round) {
    std::deque<Pieces> out, in;
    for (size_t i = 0; i < 30; ++i) {
      const size_t bytes = random() % 4 == 0 ? 20'000 : 64;
      const size_t count = 1 + random() % (i % 5 == 0 ? 20 : 2);
      out.emplace_back(count, bytes, static_cast<uint8_t>(i + 1));
      in.emplace_back(random() % 3 == 0 ? 1 + random() % 5 : count, bytes, 0);
    }
    for (size_t sent = 0, received = 0; sent < out.size() || received < in.size();) {
      if (received == in.size() || (sent < out.size() && random() % 2 == 0))
        out[sent++].send(*pair_.zero);
      else
        in[received++].recv(*pair_.one);
      if (sent > 0 && random() % 6 == 0) out[random() % sent].cancel();
      if (received > 0 && random() % 6 == 0) in[random() % received].cancel();
    }
    for (size_t i = 0; i < out.size(); ++i) {
      const Status sentEnd = out[i].end();
      const Status receivedEnd = in[i].end();
      for (const Status& end : {sentEnd, receivedEnd})
        ASSERT_TRUE(end.isOk() || end.code() == Code::kCancelled ||
                    end.code() == Code::kSizeMismatch)
            << round << ", " << i << ": " << end.toString();
      if (!receivedEnd.isOk()) continue;
      ASSERT_EQ(out[i].count(), in[i].count()) << round << ", " << i;
      ASSERT_TRUE(in[i].holds(static_cast<uint8_t>(i + 1))) << round << ", " << i;
    }
  }
  Pieces last(3, 64, 7), met(3, 64, 0);
  last.send(*pair_.zero);
  met.recv(*pair_.one);
  EXPECT_OK(last.end());
  EXPECT_OK(met.end());
  EXPECT_TRUE(met.holds(7));
}

// A list is one message; one of a single piece is as any other.
TEST_P(CommunicatorPiecesTest, ListsAreMessagesInPieces) {
  TestMemory from(*pair_.contexts.a, 1000, GetParam().shared, Access::kRemoteReadWrite, 1);
  TestMemory to(*pair_.contexts.b, 1000, GetParam().shared, Access::kRemoteReadWrite, 2);
  const auto blocks = [](TestMemory& memory, size_t count) {
    std::vector<MessageBlock> all;
    for (size_t i = 0; i < count; ++i) all.push_back({&memory.region(), i * 100, 100});
    return all;
  };
  const auto longer = pair_.zero->sendList(1, blocks(from, 3));
  const auto last = pair_.zero->sendList(1, blocks(from, 1));
  EXPECT_EQ(endOf(pair_.one->recvList(0, blocks(to, 2))), Code::kSizeMismatch);
  EXPECT_TRUE(to.isAsExpected());
  EXPECT_EQ(endOf(pair_.one->recv(0, to.region(), 500, 100)), Code::kOk);
  EXPECT_EQ(endOf(longer), Code::kSizeMismatch);
  EXPECT_EQ(endOf(last), Code::kOk);
  std::memcpy(to.shadow() + 500, from.shadow(), 100);
  EXPECT_TRUE(to.isAsExpected());
}

// What the sender takes back before there is a receive ends the receives that were meant for it.
TEST_P(CommunicatorPiecesTest, TakenBackAndOfAnotherNumber) {
  Pieces first(2, 64, 1), second(3, 64, 2), third(1, 64, 3);
  first.send(*pair_.zero);
  auto group = pair_.zero->group();
  std::vector<std::byte> gone(5 * 64);
  for (size_t i = 0; i < 5; ++i)
    group.send(1, std::span<const std::byte>(gone).subspan(i * 64, 64));
  Transfer cancelled = MUST(group.asOneMessage().post());
  cancelled.cancel();
  second.send(*pair_.zero);
  third.send(*pair_.zero);
  Pieces in0(2, 64, 0), in1(2, 64, 0), in2(3, 64, 0), in3(1, 64, 0);
  for (Pieces* each : {&in0, &in1, &in2, &in3}) each->recv(*pair_.one);
  EXPECT_OK(in0.end());
  EXPECT_TRUE(in0.holds(1));
  EXPECT_FALSE(in1.end().isOk());
  EXPECT_FALSE(cancelled.wait(kSoon).isOk());
  EXPECT_OK(in2.end());
  EXPECT_TRUE(in2.holds(2));
  EXPECT_OK(in3.end());
  EXPECT_TRUE(in3.holds(3));
  // Their memory is the lane's until they have ended, which a sender may learn after its receiver.
  for (const Pieces* each : {&first, &second, &third}) EXPECT_OK(each->end());
}

TEST_P(CommunicatorPiecesTest, TheOtherSideEndsInTheMiddle) {
  Pieces out(40, 64, 1), in(3, 64, 0), behind(30, 64, 0);
  in.recv(*pair_.one);
  behind.recv(*pair_.one);
  out.send(*pair_.zero);
  EXPECT_EQ(in.end().code(), Code::kSizeMismatch);
  pair_.zero.reset();
  EXPECT_FALSE(behind.end().isOk());
  EXPECT_FALSE(out.end().isOk());
}

TEST_P(CommunicatorPiecesTest, AGroupThatIsNoMessage) {
  std::vector<std::byte> bytes(64);
  auto group = pair_.zero->group();
  group.send(1, std::span<const std::byte>(bytes)).recv(1, std::span(bytes)).asOneMessage();
  EXPECT_EQ(group.post().status().code(), Code::kInvalidArgument);
  for (size_t i = 0; i < 65536; ++i) group.send(1, std::span<const std::byte>(bytes));
  EXPECT_EQ(group.asOneMessage().post().status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace peerlane
