// SPDX-License-Identifier: Apache-2.0
//
// The order of what a mailbox does over a NIC, on devices that place bytes in order, in any order
// within relaxed regions, and in any order at all: docs/network.md has the table.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

#include "peerlane/program/words/word.h"
#include "tests/core/expect_ok.h"
#include "tests/fake/patterned_bytes.h"
#include "tests/transport/verbs/verbs_joint.h"

namespace peerlane {
namespace {

constexpr uint64_t kData = 24 * 1024;
constexpr uint64_t kFlag = kData;
constexpr uint64_t kBytes = kData + 4096;

struct Placing {
  const char* name;
  HcaSettings settings;
  bool ordersWrites;
  bool isAsked = false;  // words are mails because a grant of the peer asked for that
};

// Two links over two devices, an area of each side.
struct Stage {
  explicit Stage(const Placing& how)
      : a(how.settings),
        b(how.settings),
        joint(a, b, {.ordersWrites = how.ordersWrites}),
        second(a, b, {.ordersWrites = how.ordersWrites}),
        near(a.memory(kBytes)),
        far(b.memory(kBytes)),
        remote(joint.attach(1, far)),
        viaSecond(second.attach(1, far)) {
    if (!how.isAsked) return;
    joint.agent(0).mailWords();
    second.agent(0).mailWords();
  }
  std::atomic_ref<uint64_t> flag() const {
    return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(far.bytes.data() + kFlag));
  }
  // Until the word is seen, by looking at memory and, where words are mails, by turns of the peer.
  bool seesFlag(uint64_t value, const std::vector<Poster*>& posters = {}) {
    return joint.until([&] { return flag().load(std::memory_order_acquire) == value; }, posters);
  }

  VerbsSide a, b;
  VerbsJoint joint, second;
  VerbsSide::Memory near, far;
  RemoteMemory remote, viaSecond;
};

Placing adaptive(const char* seed, bool ordersWrites) {
  return {"adaptive", {{"ORDER", "adaptive"}, {"SEED", seed}, {"WINDOW_US", "300"}}, ordersWrites};
}

class VerbsOrder : public testing::TestWithParam<Placing> {
 protected:
  // As far as it gets while the peer's processor attends to nothing.
  void runAlone(Poster& poster) {
    for (int turns = 0; turns < 20; ++turns) {
      poster.serve();
      HcaControl::get().settle(stage_.a.device());
      stage_.joint.run(0);
    }
  }
  static constexpr int kRounds = 60;
  Stage stage_{GetParam()};
};

const auto kWritten =
    testing::Values(Placing{"inOrder", {}, true}, Placing{"relaxed", {{"ORDER", "relaxed"}}, true});
const auto kMailed =
    testing::Values(Placing{"inOrder", {}, false}, Placing{"asAsked", {}, true, true},
                    Placing{"askedRelaxed", {{"ORDER", "relaxed"}}, true, true},
                    adaptive("1", false), adaptive("2", false), adaptive("3", false));
const auto kName = [](const testing::TestParamInfo<Placing>& each) {
  const auto seed = each.param.settings.find("SEED");
  return std::string(each.param.name) + (seed == each.param.settings.end() ? "" : seed->second);
};
INSTANTIATE_TEST_SUITE_P(Written, VerbsOrder, kWritten, kName);
INSTANTIATE_TEST_SUITE_P(Mailed, VerbsOrder, kMailed, kName);

// What holds of a word whether or not the peer's processor attends to anything meanwhile.
class VerbsWordOrder : public VerbsOrder {};
INSTANTIATE_TEST_SUITE_P(Written, VerbsWordOrder, kWritten, kName);
INSTANTIATE_TEST_SUITE_P(Mailed, VerbsWordOrder, kMailed, kName);

TEST_P(VerbsOrder, DataIsWholeWhenItsWordIsSeen) {
  for (int round = 1; round <= kRounds; ++round) {
    const auto seed = static_cast<uint64_t>(round);
    fillPattern(stage_.near.bytes.first(kData), seed);
    Poster poster(stage_.joint, 0);
    poster.put({{stage_.near.bytes.data(), &stage_.remote, 0, kData}});
    poster.store(stage_.remote, kFlag, seed);
    poster.serve();
    ASSERT_TRUE(stage_.seesFlag(seed));
    ASSERT_EQ(firstWrong(stage_.far.bytes.first(kData), seed), kData) << "round " << round;
    ASSERT_EQ(stage_.joint.settle(poster), Code::kOk);
  }
}

TEST_P(VerbsOrder, DataIsWholeWhenItsAdditionIsSeen) {
  for (int round = 1; round <= kRounds; ++round) {
    const auto seed = static_cast<uint64_t>(round);
    fillPattern(stage_.near.bytes.first(kData), seed);
    Poster poster(stage_.joint, 0);
    poster.put({{stage_.near.bytes.data(), &stage_.remote, 0, kData}});
    poster.add64(stage_.remote, kFlag, 1);
    poster.serve();
    ASSERT_TRUE(stage_.seesFlag(seed));
    ASSERT_EQ(firstWrong(stage_.far.bytes.first(kData), seed), kData) << "round " << round;
    ASSERT_EQ(stage_.joint.settle(poster), Code::kOk);
  }
}

// Done means acknowledged: whole at the peer.
TEST_P(VerbsOrder, DataIsWholeWhenItsPutIsDone) {
  for (int round = 1; round <= kRounds; ++round) {
    const auto seed = static_cast<uint64_t>(round);
    fillPattern(stage_.near.bytes.first(kData), seed);
    Poster poster(stage_.joint, 0);
    poster.put({{stage_.near.bytes.data(), &stage_.remote, 0, kData}});
    ASSERT_EQ(stage_.joint.settle(poster), Code::kOk);
    ASSERT_EQ(firstWrong(stage_.far.bytes.first(kData), seed), kData) << "round " << round;
  }
}

TEST_P(VerbsOrder, DataIsWholeWhenAFlushIsDone) {
  for (int round = 1; round <= kRounds; ++round) {
    const auto seed = static_cast<uint64_t>(round);
    fillPattern(stage_.near.bytes.first(kData), seed);
    Poster poster(stage_.joint, 0);
    poster.put({{stage_.near.bytes.data(), &stage_.remote, 0, kData}});
    poster.store(stage_.remote, kFlag, seed);
    poster.flush(stage_.remote);
    ASSERT_EQ(stage_.joint.settle(poster), Code::kOk);
    ASSERT_EQ(stage_.flag().load(), seed) << "round " << round;
    ASSERT_EQ(firstWrong(stage_.far.bytes.first(kData), seed), kData) << "round " << round;
  }
}

TEST_P(VerbsOrder, AGetSeesThePutBeforeIt) {
  const auto back = stage_.a.memory(kData);
  for (int round = 1; round <= kRounds; ++round) {
    const auto seed = static_cast<uint64_t>(round);
    fillPattern(stage_.near.bytes.first(kData), seed);
    Poster poster(stage_.joint, 0);
    poster.put({{stage_.near.bytes.data(), &stage_.remote, 0, kData}});
    poster.get({{back.bytes.data(), &stage_.remote, 0, kData}});
    ASSERT_EQ(stage_.joint.settle(poster), Code::kOk);
    ASSERT_EQ(firstWrong(back.bytes, seed), kData) << "round " << round;
  }
}

TEST_P(VerbsWordOrder, AGetSeesTheWordBeforeIt) {
  const auto back = stage_.a.memory(64);
  for (int round = 1; round <= kRounds; ++round) {
    const auto seed = static_cast<uint64_t>(round);
    Poster poster(stage_.joint, 0);
    poster.store(stage_.remote, kFlag, seed);
    poster.get({{back.bytes.data(), &stage_.remote, kFlag, 8}});
    runAlone(poster);
    ASSERT_EQ(stage_.joint.settle(poster), Code::kOk);
    ASSERT_EQ(loadWord(back.bytes.data(), Width::k64), seed) << "round " << round;
  }
}

TEST_P(VerbsWordOrder, IsThereWhenItIsDone) {
  for (int round = 1; round <= kRounds; ++round) {
    const auto seed = static_cast<uint64_t>(round);
    Poster poster(stage_.joint, 0);
    poster.store(stage_.remote, kFlag, seed);
    poster.flush(stage_.remote);
    runAlone(poster);
    if (poster.idle()) {
      ASSERT_EQ(stage_.flag().load(), seed) << "round " << round;
    }
    ASSERT_EQ(stage_.joint.settle(poster), Code::kOk);
    ASSERT_EQ(stage_.flag().load(), seed) << "round " << round;
  }
}

TEST_P(VerbsOrder, APutAfterAGetLeavesItTheOldBytes) {
  const auto back = stage_.a.memory(kData);
  for (int round = 1; round <= kRounds; ++round) {
    const auto seed = static_cast<uint64_t>(round);
    fillPattern(stage_.far.bytes.first(kData), seed);
    fillPattern(stage_.near.bytes.first(kData), seed + 1);
    Poster poster(stage_.joint, 0);
    poster.get({{back.bytes.data(), &stage_.remote, 0, kData}});
    poster.put({{stage_.near.bytes.data(), &stage_.remote, 0, kData}});
    ASSERT_EQ(stage_.joint.settle(poster), Code::kOk);
    ASSERT_EQ(firstWrong(back.bytes, seed), kData) << "round " << round;
    ASSERT_EQ(firstWrong(stage_.far.bytes.first(kData), seed + 1), kData) << "round " << round;
  }
}

// The word gives the memory back to the peer, which writes it again at once.
TEST_P(VerbsOrder, AWordAfterAGetComesWhenItsBytesWereRead) {
  const auto back = stage_.a.memory(kData);
  for (int round = 1; round <= kRounds; ++round) {
    const auto seed = static_cast<uint64_t>(round);
    fillPattern(stage_.far.bytes.first(kData), seed);
    Poster poster(stage_.joint, 0);
    poster.get({{back.bytes.data(), &stage_.remote, 0, kData}});
    poster.store(stage_.remote, kFlag, seed);
    poster.serve();
    ASSERT_TRUE(stage_.seesFlag(seed));
    fillPattern(stage_.far.bytes.first(kData), seed + 1);
    ASSERT_EQ(stage_.joint.settle(poster), Code::kOk);
    ASSERT_EQ(firstWrong(back.bytes, seed), kData) << "round " << round;
  }
}

TEST_P(VerbsOrder, WordsOfAMailboxComeInTheirOrder) {
  Poster poster(stage_.joint, 0);
  uint64_t value = 0, seen = 0;
  for (int round = 1; round <= kRounds; ++round) {
    for (uint32_t i = 0; i < Mailbox::kSlots; ++i) poster.store(stage_.remote, kFlag, ++value);
    ASSERT_TRUE(stage_.joint.until(
        [&] {
          const uint64_t now = stage_.flag().load(std::memory_order_acquire);
          EXPECT_GE(now, seen);
          seen = now;
          return seen == value && poster.idle();
        },
        {&poster}));
  }
}

// The tests above can fail: on a device that places bytes in any order, a link that believes
// otherwise gives out the word before the data.
TEST(VerbsOrderViolated, IsSeenWhereTheSidesAgreeWrongly) {
  Stage stage(adaptive("5", true));
  uint64_t violations = 0;
  for (uint64_t round = 1; round <= 20'000 && violations == 0; ++round) {
    fillPattern(stage.near.bytes.first(kData), round);
    Poster poster(stage.joint, 0);
    poster.put({{stage.near.bytes.data(), &stage.remote, 0, kData}});
    poster.store(stage.remote, kFlag, round);
    poster.serve();
    while (stage.flag().load(std::memory_order_acquire) != round) {
    }
    for (uint64_t at = kData - 1; at < kData && violations == 0; at -= 512)
      violations += stage.far.bytes[at] != patternByte(at, round) ? 1 : 0;
    ASSERT_EQ(stage.joint.settle(poster), Code::kOk);
  }
  EXPECT_GT(violations, 0u);
}

// What a fence keeps apart in one mailbox: of two, which promise each other nothing, the device
// lets the put overtake the get.
TEST(VerbsOrderViolated, IsSeenWhereNoFenceKeepsAPutBehindAGet) {
  Stage stage(adaptive("6", true));
  const auto back = stage.a.memory(kData);
  bool isOvertaken = false;
  for (uint64_t round = 1; round <= 2'000 && !isOvertaken; ++round) {
    fillPattern(stage.far.bytes.first(kData), round);
    fillPattern(stage.near.bytes.first(kData), round + 1);
    Poster get(stage.joint, 0), put(stage.joint, 0);
    get.get({{back.bytes.data(), &stage.remote, 0, kData}});
    get.serve();
    put.put({{stage.near.bytes.data(), &stage.remote, 0, kData}});
    ASSERT_EQ(stage.joint.settle(put), Code::kOk);
    ASSERT_EQ(stage.joint.settle(get), Code::kOk);
    isOvertaken = firstWrong(back.bytes, round) != kData;
  }
  EXPECT_TRUE(isOvertaken);
}

}  // namespace
}  // namespace peerlane
