// SPDX-License-Identifier: Apache-2.0
//
// Torture: two processes that do random things to each other's memory at once, each beside a model
// that memcpy holds; every byte, every signal and every notification is accounted for after each
// round, memory is taken back under way, and now and then one of the two is killed in the middle.
// TORTURE_SECONDS: for each route; TORTURE_SEED: a number, or "random".
#include <cstdio>
#include <cstdlib>
#include <random>

#include "tests/faults/surviving_side.h"
#include "tests/faults/torturer.h"

namespace peerlane {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kOperations = 60;  // of each side in a round

uint64_t seedOfThisRun() {
  const char* text = std::getenv("TORTURE_SEED");
  if (text == nullptr) return 1;
  if (std::string(text) == "random") return std::random_device()();
  return std::strtoull(text, nullptr, 10);
}
std::chrono::seconds timeOfThisRun() {
  const char* text = std::getenv("TORTURE_SECONDS");
  return std::chrono::seconds(text == nullptr ? 13 : std::strtoull(text, nullptr, 10));
}

class Torture : public testing::TestWithParam<const char*> {
 protected:
  Torture() : context_(MUST(Context::create({configOfRoute(GetParam()), {}, ""}))) {}

  // One process comes; after some rounds it leaves, or is killed in the middle of one.
  void life(uint64_t seed, bool isKilled) {
    std::mt19937_64 random(seed);
    PeerProcess other({GetParam(), std::to_string(random())}, "torture_peer");
    other.tell(context_->ticket());
    const Peer peer = MUST(context_->accept(kSoon));
    SideMemory offered(*context_, GetParam(), Torturer::kBytes);
    SideMemory mine(*context_, GetParam(), Torturer::kBytes);
    tellReference(peer, 1, offered.region());
    const RemoteRegion theirs = hearReference(peer, 1);
    ASSERT_EQ(other.line(), "ready");
    {
      Torturer torturer(*context_, peer, mine.region(), theirs,
                        std::vector<std::byte>(Torturer::kBytes), random());
      uint64_t notes = 0;
      uint64_t noteSum = 0;
      for (uint64_t left = 1 + random() % 4; left > 0; --left) {
        other.tell("burst " + std::to_string(kOperations));
        ASSERT_EQ(torturer.burst(kOperations), "");
        ASSERT_FALSE(torturer.lost());
        ASSERT_EQ(other.line(), "well");
        ASSERT_NO_FATAL_FAILURE(compare(other, peer, offered, torturer, notes, noteSum));
        if (random() % 2 == 0) {
          ASSERT_NO_FATAL_FAILURE(takeBack(other, peer, mine, random() % 5000));
        }
      }
      if (isKilled) {
        const uint64_t killed = random() % kOperations;
        other.tell("burst 1000000000");
        EXPECT_EQ(torturer.burst(1 << 30,
                                 [&](uint64_t i) {
                                   if (i == killed) (void)other.kill();
                                 }),
                  "");
        EXPECT_TRUE(torturer.lost());
        ++kills_;
      } else {
        peer.close();
      }
      std::printf("%s\n", torturer.summary().c_str());
      ++lives_;
    }
    EXPECT_OK(context_->unregister(mine.region(), kSoon));
    EXPECT_OK(context_->unregister(offered.region(), kSoon));
  }

  // Both regions against both models, and what was told against what was heard.
  void compare(PeerProcess& other, const Peer& peer, const SideMemory& offered,
               const Torturer& torturer, uint64_t& notes, uint64_t& noteSum) {
    const auto& model = torturer.model();
    EXPECT_EQ(other.ask("holds"), std::to_string(contentHash(model.data(), model.size())))
        << "the peer's region is not what was put there";
    EXPECT_EQ(other.ask("expects"), std::to_string(contentHash(offered.data(), offered.size())))
        << "our region is not what the peer put there";
    uint64_t signalled = 0;
    uint64_t notified = 0;
    uint64_t noted = 0;
    std::istringstream(other.ask("told")) >> signalled >> notified >> noted;
    const Signal signal = MUST(Signal::create(peer, Torturer::kSignal));
    EXPECT_OK(signal.wait(signalled, kSoon));
    EXPECT_EQ(signal.value(), signalled);
    for (; notes < notified; ++notes) {
      const Notification heard = MUST(waitNotification(peer, kSoon));
      uint64_t note = 0;
      std::memcpy(&note, heard.message.data(), sizeof note);
      noteSum += note;
    }
    EXPECT_EQ(noteSum, noted);
    EXPECT_EQ(pollNotification(peer).status().code(), Code::kTryAgain);
    const std::string expected = std::to_string(torturer.signalled());
    EXPECT_EQ(other.ask("signal " + expected), expected);
    EXPECT_EQ(other.ask("notes " + std::to_string(torturer.notified() - told_)),
              std::to_string(torturer.noted() - toldSum_));
    told_ = torturer.notified();
    toldSum_ = torturer.noted();
    ASSERT_FALSE(HasFailure());
  }

  // The peer takes a region back while we write to it.
  void takeBack(PeerProcess& other, const Peer& peer, const SideMemory& mine, uint64_t rounds) {
    other.tell("victim " + std::to_string(rounds));
    const RemoteRegion victim = hearReference(peer, 5);
    Status status;
    for (uint64_t i = 0; status.isOk(); ++i) {
      const Block block{&mine.region(), 0, &victim, 0, victim.bytes()};
      const auto posted = put(peer, {&block, 1});
      status = posted.isOk() ? posted->wait(kSoon) : posted.status();
      if (i == 0) {
        ASSERT_OK(status);
        ASSERT_OK(peer.sendMessage(6, {}));
      }
    }
    EXPECT_TRUE(status.code() == Code::kClosed || status.code() == Code::kInvalidArgument)
        << status.toString();
    ASSERT_OK(peer.receiveMessage(6, kSoon).status());
    ASSERT_OK(peer.sendMessage(6, {}));
    ASSERT_EQ(other.line(), "taken");
  }

  std::unique_ptr<Context> context_;
  uint64_t told_ = 0;
  uint64_t toldSum_ = 0;
  uint64_t lives_ = 0;
  uint64_t kills_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Routes, Torture, testing::Values("mapped", "cma", "ring", "tcp"),
                         [](const auto& each) { return std::string(each.param); });

TEST_P(Torture, EveryByteIsWhereTheModelHasIt) {
  const uint64_t seed = seedOfThisRun();
  std::printf("TORTURE_SEED=%lu\n", static_cast<unsigned long>(seed));
  RecordProperty("seed", std::to_string(seed));
  const auto end = Clock::now() + timeOfThisRun();
  Footprint before;
  // At least one that comes back to the footprint of the first, which made what is made once.
  for (uint64_t i = 0; i < 2 || Clock::now() < end; ++i) {
    SCOPED_TRACE("TORTURE_SEED=" + std::to_string(seed) + ", life " + std::to_string(i));
    told_ = toldSum_ = 0;
    life(seed * 1000003 + i, i % 2 == 1);
    if (HasFailure()) return;
    Footprint after;
    if (i == 0) {
      ASSERT_TRUE(soon([&] {
        before = Footprint::of(*context_);
        return before.peers == 0 && before.regions == 0 && before.pending == 0;
      })) << before;
      continue;
    }
    ASSERT_TRUE(soon([&] { return (after = Footprint::of(*context_)) == before; }))
        << "before: " << before << "\nafter: " << after << "\n"
        << context_->dump();
  }
  std::printf("%lu lives, %lu of them ended by SIGKILL\n", static_cast<unsigned long>(lives_),
              static_cast<unsigned long>(kills_));
}

}  // namespace
}  // namespace peerlane
