// SPDX-License-Identifier: Apache-2.0
//
// Several threads over one pair: some post, others turn the sides.
#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

#include "peerlane/program/words/word.h"
#include "tests/core/expect_ok.h"
#include "tests/transport/verbs/verbs_joint.h"

namespace peerlane {
namespace {

constexpr uint64_t kArea = 16 * 1024;

class VerbsThreads : public testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(Words, VerbsThreads, testing::Bool(),
                         [](const auto& each) { return each.param ? "Written" : "Mailed"; });

TEST_P(VerbsThreads, PostOverOnePairAtTheSameTime) {
  constexpr int kThreads = 3;
  constexpr uint64_t kRounds = 300;
  VerbsSide sides[2];
  VerbsJoint joint(sides[0], sides[1], {.ordersWrites = GetParam()});
  const auto near = sides[0].memory(kThreads * kArea), far = sides[1].memory(kThreads * kArea + 8);
  const auto loose = sides[0].memory(kThreads * kArea, /*isHeld=*/false);
  const RemoteMemory remote = joint.attach(1, far);
  {
    const LinkThreads turning(joint);
    std::vector<std::thread> threads;
    for (uint64_t number = 0; number < kThreads; ++number) {
      threads.emplace_back([&, number] {
        Poster poster(joint, 0);
        const auto area = near.bytes.subspan(number * kArea, kArea);
        const auto other = loose.bytes.subspan(number * kArea, kArea);
        for (uint64_t round = 1; round <= kRounds; ++round) {
          std::memset(area.data(), static_cast<int>(round), kArea);
          poster.put({{area.data(), &remote, number * kArea, kArea}});
          poster.get({{other.data(), &remote, number * kArea, kArea}});
          poster.add64(remote, kThreads * kArea, 1);
          while (!poster.idle()) {
            poster.serve();
            std::this_thread::yield();
          }
          ASSERT_EQ(poster.takeCode(), Code::kOk);
          ASSERT_EQ(std::memcmp(area.data(), other.data(), kArea), 0) << "round " << round;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_TRUE(joint.until([&] {
    return loadWord(far.bytes.data() + kThreads * kArea, Width::k64) == kThreads * kRounds;
  }));
  EXPECT_TRUE(sides[0].areSlotsFree());
}

// A link that ends while threads post ends their works, each once.
TEST_P(VerbsThreads, ALinkThatClosesEndsWhatTheyPost) {
  for (int round = 0; round < 20; ++round) {
    VerbsSide sides[2];
    VerbsJoint joint(sides[0], sides[1], {.ordersWrites = GetParam()});
    const auto near = sides[0].memory(kArea), far = sides[1].memory(kArea);
    const RemoteMemory remote = joint.attach(1, far);
    const LinkThreads turning(joint);
    std::vector<std::thread> threads;
    for (int number = 0; number < 2; ++number) {
      threads.emplace_back([&] {
        Poster poster(joint, 0);
        for (Code code = Code::kOk; code == Code::kOk; code = poster.takeCode()) {
          poster.put({{near.bytes.data(), &remote, 0, kArea - 8}});
          poster.store(remote, kArea - 8, 1);
          while (!poster.idle()) {
            poster.serve();
            std::this_thread::yield();
          }
        }
      });
    }
    while (sides[0].counts().completions < 20) std::this_thread::yield();
    joint.link(0).close(Code::kClosed);
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(joint.link(0).health().code(), Code::kClosed);
  }
}

}  // namespace
}  // namespace peerlane
