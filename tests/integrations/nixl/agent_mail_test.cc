// SPDX-License-Identifier: Apache-2.0
//
// What a peer that keeps to no rule can do with the notifications of an agent.
#include "integrations/nixl/agent_mail.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "integrations/nixl/agent_blobs.h"
#include "peerlane/channel/signal/notification.h"
#include "tests/channel/context_pair.h"
#include "tests/core/soon.h"

namespace peerlane::nixl {
namespace {

using Whole = std::optional<std::string>;

TEST(JoinedPieces, MakeOneMessage) {
  JoinedPieces pieces;
  EXPECT_EQ(pieces.add(7, true, "one "), std::nullopt);
  EXPECT_EQ(pieces.add(7, true, "and "), std::nullopt);
  EXPECT_EQ(pieces.add(7, false, "two"), Whole("one and two"));
  EXPECT_EQ(pieces.add(8, false, "three"), Whole("three"));
  EXPECT_EQ(pieces.add(8, false, "three"), std::nullopt) << "it was given out";
}

TEST(JoinedPieces, LeaveOutTheRestOfWhatWasDropped) {
  JoinedPieces pieces;
  EXPECT_EQ(pieces.add(7, true, "begun"), std::nullopt);
  EXPECT_EQ(pieces.add(9, true, "later"), std::nullopt);
  EXPECT_EQ(pieces.add(7, false, " and never whole"), std::nullopt);
  EXPECT_EQ(pieces.add(8, false, "nor this"), std::nullopt);
  EXPECT_EQ(pieces.add(9, false, " one"), Whole("later one"));
}

TEST(JoinedPieces, GoRoundWithTheirNumbers) {
  JoinedPieces pieces;
  EXPECT_EQ(pieces.add(JoinedPieces::kMostNumber, false, "last"), Whole("last"));
  EXPECT_EQ(pieces.add(1, true, "first"), std::nullopt);
  EXPECT_EQ(pieces.add(JoinedPieces::kMostNumber, false, "old"), std::nullopt);
  EXPECT_EQ(pieces.add(1, false, " again"), Whole("first again"));
}

TEST(JoinedPieces, KeepNoMoreThanTheLimit) {
  JoinedPieces pieces(10);
  EXPECT_EQ(pieces.add(1, true, "12345"), std::nullopt);
  EXPECT_EQ(pieces.add(1, false, "67890"), Whole("1234567890"));
  EXPECT_EQ(pieces.add(2, true, "1234567890"), std::nullopt);
  EXPECT_EQ(pieces.add(2, true, "x"), std::nullopt);
  EXPECT_EQ(pieces.add(2, false, ""), std::nullopt);
  EXPECT_EQ(pieces.add(3, false, "12345678901"), std::nullopt);
  EXPECT_EQ(pieces.add(4, false, "goes on"), Whole("goes on"));
}

// The thread looks again and again, and takes no more in.
TEST(AgentMail, KeepsNoMoreThanTheLimitForAnAgentThatDoesNotAsk) {
  constexpr size_t kCount = 10'000;
  const ContextPair pair(configFor(kMapped));
  std::atomic<uint64_t> ticks{0};
  AgentMail mail(
      "here", [&] { ++ticks; }, 100'000);
  mail.listenTo(pair.toA);
  const auto post = [&](size_t i) {
    std::string text;
    appendLength(text, 5);
    text += "there" + std::to_string(i) + std::string(1000, '.');
    return notify(pair.toB, {.message = std::as_bytes(std::span(text))}).status().code();
  };
  size_t sent = 0;
  while (sent < kCount) {
    Code code = post(sent);
    if (code == Code::kTryAgain) {
      const uint64_t before = ticks.load();
      ASSERT_TRUE(soon([&] { return ticks.load() >= before + 3; }));
      code = post(sent);
      if (code == Code::kTryAgain) break;
    }
    ASSERT_EQ(code, Code::kOk);
    ++sent;
  }
  EXPECT_LT(sent, kCount) << "all of them were taken in";
  abi::Notifications taken;
  EXPECT_TRUE(soon([&] {
    mail.take(taken);
    return taken.size() >= sent;
  }));
  ASSERT_EQ(taken.size(), sent);
  for (size_t i = 0; i < sent; ++i) {
    EXPECT_EQ(taken[i].first, "there");
    EXPECT_EQ(taken[i].second.substr(0, taken[i].second.find('.')), std::to_string(i));
  }
}

// A peer that sends what no agent would does not fill the disk.
TEST(AgentMail, SaysOfWhatItDropsNoMoreThanSomeLines) {
  constexpr int kCount = 1000;
  const ContextPair pair(configFor(kMapped));
  testing::internal::CaptureStderr();
  {
    AgentMail mail("here", [] {});
    mail.listenTo(pair.toA);
    const std::byte foreign{1};
    abi::Notifications taken;
    for (int i = 0; i < kCount; ++i) {
      const Transfer sent = MUST(notify(pair.toB, {.message = std::span(&foreign, 1)}));
      mail.take(taken);
      ASSERT_OK(sent.wait(kSoon));  // there was room: the one before it was taken
    }
    EXPECT_TRUE(taken.empty());
  }
  const std::string said = testing::internal::GetCapturedStderr();
  const auto lines = std::count(said.begin(), said.end(), '\n');
  EXPECT_NE(said.find("here: dropped a notification of 1 bytes"), std::string::npos) << said;
  EXPECT_LT(lines, kCount / 2) << said;
}

TEST(AgentMail, RefusesWhatNoReceiverWouldKeep) {
  const ContextPair pair(configFor(kMapped));
  AgentMail mail("here", [] {});
  EXPECT_EQ(mail.send(pair.toB, std::string(JoinedPieces::kMostBytes, 'x')).code(),
            Code::kInvalidArgument);
}

}  // namespace
}  // namespace peerlane::nixl
