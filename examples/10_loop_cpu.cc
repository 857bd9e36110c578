// SPDX-License-Identifier: Apache-2.0
//
// Receive, compute, send, again and again, by one thread on each side that does all of it: a
// prepared Plan whose post adds to the peer's signal, and a wait for this side's. Once with waits
// that may sleep, once in a loop that never does. 11_loop_async is the same loop with its transfers
// prepared ahead. On a GPU the thread launches a kernel and posts behind it on its stream.
//
//   example_10_loop_cpu --rounds 100000
#include "examples/loop_side.h"

using namespace example;
using peerlane::Plan;
using peerlane::Signal;

namespace {

enum class Waits { kMaySleep, kSpin };

class Loop {
 public:
  static Result<Loop> create(const LoopSide& side, uint32_t signal, Waits waits) {
    const peerlane::Block block = side.block();
    PEERLANE_ASSIGN(Plan plan, Plan::create(side.peer, peerlane::Direction::kPut, {&block, 1},
                                            {.signal = signal}));
    PEERLANE_ASSIGN(Signal arrived, Signal::create(side.peer, signal));
    return Loop(side, waits, std::move(plan), std::move(arrived));
  }

  Status run(uint64_t rounds) {
    for (uint64_t round = 1; round <= rounds; ++round) {
      if (side_.rank == 1) PEERLANE_RETURN_IF_ERROR(receive(round));
      PEERLANE_RETURN_IF_ERROR(side_.work());
      PEERLANE_RETURN_IF_ERROR(send());
      if (side_.rank == 0) PEERLANE_RETURN_IF_ERROR(receive(round));
    }
    return Status::ok();
  }

 private:
  Loop(const LoopSide& side, Waits waits, Plan plan, Signal arrived)
      : side_(side), waits_(waits), plan_(std::move(plan)), arrived_(std::move(arrived)) {}

  Status receive(uint64_t round) const {
    if (waits_ == Waits::kMaySleep) return arrived_.wait(round, kPatience);
    for (uint64_t looks = 1; arrived_.value() < round; ++looks)
      if (looks % 1024 == 0) PEERLANE_RETURN_IF_ERROR(side_.peer.status());
    return Status::ok();
  }
  // Where the link's agent sends, an answer may be here before the put that it answers is
  // confirmed.
  Status send() {
    for (;;) {
      Status posted = (kOnGpu ? plan_.post(side_.stream) : plan_.post()).status();
      if (posted.code() != Code::kTryAgain) return posted;
    }
  }

  const LoopSide& side_;
  const Waits waits_;
  Plan plan_;
  Signal arrived_;
};

Status play(const LoopSide& side, uint64_t rounds) {
  for (const Waits waits : {Waits::kMaySleep, Waits::kSpin}) {
    const bool spins = waits == Waits::kSpin;
    PEERLANE_ASSIGN(Loop loop, Loop::create(side, spins ? 1 : 0, waits));
    PEERLANE_RETURN_IF_ERROR(side.begin());
    PEERLANE_RETURN_IF_ERROR(side.meet());
    const Clock::time_point start = Clock::now();
    PEERLANE_RETURN_IF_ERROR(loop.run(rounds));
    PEERLANE_RETURN_IF_ERROR(side.finish());
    side.report(spins ? "loop_cpu, waits that spin:" : "loop_cpu, waits that sleep:", rounds,
                start);
    PEERLANE_RETURN_IF_ERROR(side.verify(rounds));
    PEERLANE_RETURN_IF_ERROR(side.meet());  // before rank 0 begins anew
  }
  return Status::ok();
}

}  // namespace

int main(int argc, char** argv) {
  return runLoop(argc, argv, play);
}
