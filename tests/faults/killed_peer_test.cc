// SPDX-License-Identifier: Apache-2.0
//
// A peer killed at a random moment, with everything under way in both directions: every call of the
// survivor that was pending says so in time, nothing is left behind, and the next process is
// welcome.
#include <cstdlib>
#include <random>

#include "peerlane/os/process.h"
#include "tests/faults/surviving_side.h"

namespace peerlane {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// Of a process that died; one that is silent is noticed after 30 s.

class KilledPeer : public testing::TestWithParam<const char*> {
 protected:
  KilledPeer() : context_(MUST(Context::create({configOfRoute(GetParam()), {}, ""}))) {}

  // One process comes, works, and is killed after `operations` operations of ours and `later`.
  void kill(uint64_t operations, std::chrono::microseconds later) {
    PeerProcess other({GetParam()});
    other.tell(context_->ticket());
    const Peer peer = MUST(context_->accept(kSoon));
    SideMemory memory(*context_, GetParam(), Traffic::kBytes);
    tellReference(peer, 1, memory.region());
    const RemoteRegion theirs = hearReference(peer, 1);
    ASSERT_EQ(other.line(), "ready");
    other.tell("traffic");
    Traffic traffic(*context_, peer, memory.region(), theirs);
    ASSERT_EQ(other.line(), "running");
    ASSERT_TRUE(soon([&] { return traffic.done() >= operations; }, 60s));
    const auto moment = Clock::now() + later;
    while (Clock::now() < moment) std::this_thread::yield();
    ASSERT_EQ(traffic.running(), 10u) << "something ended before the kill";
    other.kill();
    for (const Traffic::End& end : traffic.ends()) {
      EXPECT_EQ(end.status.code(), Code::kPeerLost) << end.what << ": " << end.status.toString();
    }
    // A link of its own may see the end before the control connection does.
    EXPECT_TRUE(soon([&] { return peer.state() == "lost"; }));
    // What it had imported is free at once.
    EXPECT_OK(context_->unregister(memory.region(), kSoon));
  }

  void killOften(int times, uint64_t seed) {
    std::mt19937_64 random(seed);
    const Footprint fresh = Footprint::of(*context_);
    kill(100, 0us);
    // What is made once is made now: the listener of tcp, and the descriptor it keeps in reserve.
    Footprint before;
    ASSERT_TRUE(soon([&] {
      before = Footprint::of(*context_);
      const size_t once = before.descriptors - fresh.descriptors;
      before.descriptors = fresh.descriptors;
      const bool same = before == fresh;
      before.descriptors += once;
      return same && once <= (std::string(GetParam()) == "tcp" ? 2 : 0);
    })) << "before: "
        << fresh << "\nafter: " << before << "\n"
        << context_->dump();
    const uint64_t resident = MUST(residentBytes());
    for (int i = 0; i < times && !HasFatalFailure(); ++i) {
      SCOPED_TRACE("kill number " + std::to_string(i));
      kill(random() % 1000, std::chrono::microseconds(random() % 3000));
      Footprint after;
      EXPECT_TRUE(soon([&] { return (after = Footprint::of(*context_)) == before; }))
          << "before: " << before << "\nafter: " << after << "\n"
          << context_->dump();
    }
#if !defined(__SANITIZE_ADDRESS__)  // it keeps what was freed
    if (times >= 50) {
      EXPECT_LT(MUST(residentBytes()), resident + (16 << 20));
    }
#else
    (void)resident;
#endif
  }

  std::unique_ptr<Context> context_;
};

INSTANTIATE_TEST_SUITE_P(Routes, KilledPeer, testing::Values("mapped", "cma", "ring", "tcp"),
                         [](const auto& each) { return std::string(each.param); });

// FAULT_KILLS, FAULT_SEED: the long version, and a run again.
uint64_t numberFrom(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST_P(KilledPeer, AtARandomMomentEveryPendingCallHearsOfItAndNothingIsLeft) {
  const uint64_t seed = numberFrom("FAULT_SEED", std::random_device()());
  RecordProperty("seed", std::to_string(seed));
  SCOPED_TRACE("FAULT_SEED=" + std::to_string(seed));
  killOften(static_cast<int>(numberFrom("FAULT_KILLS", 10)), seed);
}

}  // namespace
}  // namespace peerlane
