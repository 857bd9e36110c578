// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/peer/message_channels.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <string>

namespace peerlane {
namespace {

using limits::kMessagesPerChannel;
using limits::kMessagesPerPeer;

constexpr uint32_t kLibrarys = MessageChannels::kFirstOfLibrary;

bool contains(const Status& status, const std::string& part) {
  return status.message().find(part) != std::string_view::npos;
}

TEST(MessageChannels, AChannelHasRoomUntilThePeerTakes) {
  MessageChannels channels;
  for (uint32_t i = 0; i < kMessagesPerChannel; ++i) ASSERT_TRUE(channels.claim(5).isOk());
  const Status full = channels.claim(5);
  EXPECT_EQ(full.code(), Code::kTryAgain);
  EXPECT_TRUE(contains(full, "64 messages of channel 5 that it did not take")) << full.toString();
  EXPECT_FALSE(channels.hasRoom(5));
  EXPECT_TRUE(channels.claim(6).isOk()) << "another has room of its own";
  ASSERT_TRUE(channels.taken(5, 2).isOk());
  EXPECT_TRUE(channels.claim(5).isOk());
  EXPECT_TRUE(channels.claim(5).isOk());
  EXPECT_EQ(channels.claim(5).code(), Code::kTryAgain);
}

TEST(MessageChannels, AllOfAProgramsLeaveRoomForTheLibrary) {
  MessageChannels channels;
  for (uint32_t i = 0; i < kMessagesPerPeer; ++i) ASSERT_TRUE(channels.claim(i).isOk());
  const Status full = channels.claim(kMessagesPerPeer);
  EXPECT_EQ(full.code(), Code::kTryAgain);
  EXPECT_TRUE(contains(full, "1024 messages of 1024 channels")) << full.toString();
  EXPECT_TRUE(channels.claim(kLibrarys).isOk());
  ASSERT_TRUE(channels.taken(17, 1).isOk());
  EXPECT_TRUE(channels.claim(kMessagesPerPeer).isOk());
}

TEST(MessageChannels, WhoDoesNotCountIsShownOut) {
  MessageChannels channels;
  EXPECT_EQ(channels.taken(1, 1).code(), Code::kCorrupt);
  ASSERT_TRUE(channels.claim(1).isOk());
  EXPECT_EQ(channels.taken(1, 0).code(), Code::kCorrupt);
  EXPECT_EQ(channels.taken(1, 2).code(), Code::kCorrupt);
  EXPECT_TRUE(channels.taken(1, 1).isOk());
  for (uint32_t i = 0; i < kMessagesPerChannel; ++i) ASSERT_TRUE(channels.push(3, {}).isOk());
  EXPECT_EQ(channels.push(3, {}).code(), Code::kCorrupt);
  for (uint32_t i = kMessagesPerChannel; i < kMessagesPerPeer; ++i)
    ASSERT_TRUE(channels.push(1000 + i, {}).isOk());
  EXPECT_EQ(channels.push(4, {}).code(), Code::kCorrupt);
  EXPECT_TRUE(channels.push(kLibrarys, {}).isOk());
}

// Two sides, messages and counts under way for any time: nobody who counts is refused, everything
// comes in order, and in the end all room is there again.
TEST(MessageChannels, WhoCountsIsNeverRefused) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](uint32_t bound) { return static_cast<uint32_t>(random() % bound); };
    MessageChannels sender, receiver;
    std::deque<std::pair<uint32_t, std::byte>> there;
    std::deque<std::pair<uint32_t, uint32_t>> back;
    std::map<uint32_t, uint8_t> nextSent, nextTaken;
    size_t refused = 0, arrived = 0;
    const auto step = [&](uint32_t what, uint32_t channel) {
      if (what == 0) {
        if (sender.claim(channel).isOk())
          there.push_back({channel, std::byte{nextSent[channel]++}});
        else
          ++refused;
      } else if (what == 1 && !there.empty()) {
        ASSERT_TRUE(receiver.push(there.front().first, {there.front().second}).isOk());
        there.pop_front();
        ++arrived;
      } else if (what == 2) {
        std::vector<std::byte> content;
        if (receiver.pop(channel, content)) {
          ASSERT_EQ(content.at(0), std::byte{nextTaken[channel]++});
        }
      } else if (what == 3) {
        for (const auto& each : receiver.unreported()) back.push_back(each);
      } else if (what == 4 && !back.empty()) {
        ASSERT_TRUE(sender.taken(back.front().first, back.front().second).isOk());
        back.pop_front();
      }
    };
    // Rather many sends, so that the room is gone now and then.
    for (int i = 0; i < 20000; ++i) step(below(8) % 5, below(2) * kLibrarys + below(20));
    EXPECT_GT(refused, 0u);
    EXPECT_GT(arrived, 1000u);
    while (!there.empty()) step(1, 0);
    for (uint32_t channel = 0; channel < 20; ++channel)
      for (uint32_t i = 0; i < kMessagesPerChannel; ++i) {
        step(2, channel);
        step(2, kLibrarys + channel);
      }
    step(3, 0);
    while (!back.empty()) step(4, 0);
    EXPECT_EQ(nextSent, nextTaken);
    for (uint32_t i = 0; i < kMessagesPerPeer; ++i) {
      ASSERT_TRUE(sender.claim(i / kMessagesPerChannel).isOk());
      ASSERT_TRUE(sender.claim(kLibrarys + i / kMessagesPerChannel).isOk());
    }
  }
}

}  // namespace
}  // namespace peerlane
