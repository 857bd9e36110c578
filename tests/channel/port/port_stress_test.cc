// SPDX-License-Identifier: Apache-2.0
//
// Data, then signal, very often. PORT_MESSAGES is how many messages all cases send together;
// without it a million, and a twentieth under a sanitizer. Sizes are scaled: most messages have up
// to 256 bytes, one in 64 up to 64 KiB, one in 4096 up to 1 MiB, so that memory bandwidth is not
// what is tested.
// Letters and numbers in comments are those of the table in docs/port_channel.md.
#include <cstdlib>
#include <random>

#include "tests/channel/port/port_pair.h"
#include "tests/core/rounds.h"

namespace peerlane {
namespace {

using namespace std::chrono_literals;

constexpr uint64_t kMost = 1 << 20, kLanes = 16;

uint64_t messages() {
  if (const char* text = std::getenv("PORT_MESSAGES")) return std::strtoull(text, nullptr, 10);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return 50'000;
#else
  return 1'000'000;
#endif
}

// All that were asked for are sent, however long that takes.
std::chrono::seconds atMost(std::chrono::seconds usual) {
  return std::getenv("PORT_MESSAGES") != nullptr ? 24h : usual;
}

// A message is its number, its length, and words that follow from its number; the receiver knows
// the length from the same generator.
uint64_t lengthOf(uint64_t number) {
  std::minstd_rand random(static_cast<uint32_t>(number * 2654435761u + 1));
  random.discard(2);
  const uint64_t most = number % 4096 == 4095 ? kMost : number % 64 == 63 ? 64 * 1024 : 256;
  return random() % (most / 4) + 1;  // words
}

class PortStressTest : public PortRouteTest {
 protected:
  // `count` messages from a to b, or as many as fit into `time`, kLanes of them under way; each
  // with a number that no other has.
  void run(uint64_t count, PortEngine engine, std::chrono::seconds time) {
    std::atomic<uint64_t> last{UINT64_MAX};  // stored before that message is sent
    std::thread receiver([&] {
      const PortChannelHandle channel = b().handle();
      const PortChannelHandle answers = b().handle(PortEngine::kAuto);
      for (uint64_t i = 0; i == 0 || i - 1 != last.load(); ++i) {
        ASSERT_TRUE(channel.wait(kThread, 1, kSoonNs)) << b().channel.status().toString();
        const uint64_t words = lengthOf(i);
        ASSERT_EQ(firstWrongWord(b().data() + laneAt(i), words, seed(i)), words) << "message " << i;
        ASSERT_TRUE(answers.signal(kThread));
      }
    });
    const PortChannelHandle channel = a().handle(engine);
    Rounds beforeLast(count - 1, time);
    for (uint64_t i = 0; last.load() == UINT64_MAX; ++i) {
      if (beforeLast.next() == 0) last.store(i);
      // The lane is free when its last message was answered.
      if (i >= kLanes) {
        ASSERT_TRUE(channel.wait(kThread, 1, kSoonNs)) << i;
      }
#if defined(__SANITIZE_THREAD__)
      // It does not see that the peer's answer came behind the proxy's copies into the same lane.
      if (i % kLanes == 0) {
        ASSERT_TRUE(channel.flush(kThread, kSoonNs));
      }
#endif
      const uint64_t words = lengthOf(i);
      fillWords(a().data() + laneAt(i), words, seed(i));
      // Signals of their own in between: order holds across requests and engines.
      if (i % 3 == 0) {
        ASSERT_TRUE(channel.put(kThread, laneAt(i), laneAt(i), words * 4));
        ASSERT_TRUE(channel.signal(kThread));
      } else {
        ASSERT_TRUE(channel.putWithSignal(kThread, laneAt(i), laneAt(i), words * 4));
      }
    }
    const uint64_t sent = last.load() + 1;
    for (uint64_t i = 0; i < std::min(kLanes, sent); ++i)
      ASSERT_TRUE(channel.wait(kThread, 1, kSoonNs));
    receiver.join();
    EXPECT_EQ(b().handle().poll(kThread).outcome, PortOutcome::kTimeout);
    base_ += static_cast<uint32_t>(sent);
  }
  static uint64_t laneAt(uint64_t number) {
    return number % kLanes * kMost;
  }
  uint32_t seed(uint64_t number) const {
    return (base_ + static_cast<uint32_t>(number)) * 11;
  }
  uint32_t base_ = 1;
};

INSTANTIATE_TEST_SUITE_P(Routes, PortStressTest, everyRoute(), routeName);

// F1 F2: what was signalled is there, whole, and of this very message.
TEST_P(PortStressTest, WhatIsSignalledIsThere) {
  ASSERT_OK(open(kMost * kLanes));
  const std::string name = GetParam().name;
  const uint64_t all = messages();
  // By who is quickest, most of them: all of the million over mapped memory, as the table says; the
  // other routes a hundredth each. The times are for a machine that has other work.
  if (name == "mapped") {
    run(all / 2, PortEngine::kInline, atMost(50s));
    run(all * 3 / 10, PortEngine::kAuto, atMost(50s));
    run(all / 5, PortEngine::kCe, atMost(50s));
  } else {
    run(all / 200, PortEngine::kAuto, atMost(8s));
    run(all / 200, PortEngine::kCe, atMost(8s));
  }
}

}  // namespace
}  // namespace peerlane
