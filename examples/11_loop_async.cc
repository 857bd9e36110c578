// SPDX-License-Identifier: Apache-2.0
//
// The loop of 10_loop_cpu, split as PeerDirect Async split it: one thread prepares the transfers of
// the rounds to come (the poster), another one only computes and runs short programs (the
// executor), which know nothing of links. A round's commit launches the put and the addition to the
// peer's signal, and its peek is over when the answer has arrived.
//
//   poster      put, signal, receive, commit, peek      for rounds ahead, twenty in a batch
//   executor    compute, run the commit, run the peek   for the round that is due
//
// On a GPU the executor is a stream: its thread enqueues a kernel, the commit and the peek, and has
// no part in what comes then.
//
//   example_11_loop_async --rounds 100000
#include <semaphore>
#include <thread>

#include "examples/loop_side.h"

using namespace example;
using peerlane::TriggeredQueue;
using peerlane::TriggerId;

namespace {

constexpr uint64_t kBatch = 20;
constexpr uint64_t kAhead = 16;  // the most peeks that a queue has under way
constexpr uint64_t kTell = 4;    // rounds after which the poster hears that there is room
constexpr uint32_t kSignal = 0;

struct Round {
  TriggerId commit;
  TriggerId peek;
};

class Loop {
 public:
  static Result<std::unique_ptr<Loop>> create(const LoopSide& side, uint64_t rounds) {
    std::unique_ptr<Loop> loop(new Loop(side, rounds));
    PEERLANE_ASSIGN(loop->queue_, TriggeredQueue::create(side.peer, {.device = side.device}));
    return Result<std::unique_ptr<Loop>>(std::move(loop));
  }

  Status run() {
    Status executed;
    std::thread executor([&] { (void)(executed = execute()); });
    const Status prepared = prepareAll();
    if (!prepared.isOk()) queue_.cancel();  // releases the executor
    ready_.release(prepared.isOk() ? 0 : 1);
    executor.join();
    return prepared.isOk() ? executed : prepared;
  }
  std::string emitter() const { return queue_.emitter(); }

 private:
  Loop(const LoopSide& side, uint64_t rounds) : side_(side), rounds_(rounds) {}

  // ---- The poster. Rank 1 has a round 0, which only receives.

  Status prepareAll() {
    for (uint64_t next = side_.rank == 0 ? 1 : 0; next <= rounds_;)
      for (const uint64_t end = std::min(next + kBatch, rounds_ + 1); next < end; ++next) {
        room_.acquire();
        PEERLANE_RETURN_IF_ERROR(queue_.status());
        PEERLANE_RETURN_IF_ERROR(prepare(next));
        ready_.release();
      }
    return Status::ok();
  }
  Status prepare(uint64_t round) {
    if (round != 0) {
      const peerlane::Block block = side_.block();
      PEERLANE_RETURN_IF_ERROR(queue_.put({&block, 1}));
      PEERLANE_RETURN_IF_ERROR(queue_.signal(kSignal));
    }
    // What comes next: the answer to this round, or the question of the next one.
    const uint64_t awaited = side_.rank == 0 ? round : round + 1;
    if (awaited <= rounds_) PEERLANE_RETURN_IF_ERROR(queue_.receive(kSignal, awaited));
    PEERLANE_ASSIGN(const auto commit, queue_.commit());
    PEERLANE_ASSIGN(const auto peek, peekOf(commit.id.number));
    prepared_[round % kAhead] = {commit.id, peek.id};
    return Status::ok();
  }

  // What is on a stream has to be passed before there is room for more.
  Result<peerlane::TriggerProgram> peekOf(uint64_t number) {
    for (;;) {
      auto peek = queue_.peek(number);
      if (peek.status().code() != Code::kTryAgain) return peek;
    }
  }

  // ---- The executor.

  Status execute() {
    Status ended = executeAll();
    if (!ended.isOk()) queue_.cancel();
    room_.release(ended.isOk() ? 0 : 1);  // the poster sees why
    return ended;
  }
  Status executeAll() {
    uint64_t done = 0;
    for (uint64_t round = side_.rank == 0 ? 1 : 0; round <= rounds_; ++round) {
      ready_.acquire();
      PEERLANE_RETURN_IF_ERROR(queue_.status());
      const Round& due = prepared_[round % kAhead];
      if (round != 0) PEERLANE_RETURN_IF_ERROR(side_.work());
      PEERLANE_RETURN_IF_ERROR(launch(due));
      if (++done % kTell == 0) room_.release(kTell);
    }
    PEERLANE_RETURN_IF_ERROR(side_.finish());
    return queue_.status();
  }
  Status launch(const Round& due) {
    if constexpr (kOnGpu) {
      PEERLANE_RETURN_IF_ERROR(queue_.enqueueCommit(due.commit, side_.stream));
      return queue_.enqueuePeek(due.peek, side_.stream, kPatience);
    } else {
      PEERLANE_RETURN_IF_ERROR(queue_.execute(due.commit));
      return queue_.executePeek(due.peek, kPatience);
    }
  }

  const LoopSide& side_;
  const uint64_t rounds_;
  TriggeredQueue queue_;
  std::array<Round, kAhead> prepared_;
  std::counting_semaphore<> ready_{0};      // rounds that are prepared and have not run
  std::counting_semaphore<> room_{kAhead};  // rounds that may be prepared
};

Status play(const LoopSide& side, uint64_t rounds) {
  PEERLANE_ASSIGN(const auto loop, Loop::create(side, rounds));
  PEERLANE_RETURN_IF_ERROR(side.begin());
  PEERLANE_RETURN_IF_ERROR(side.meet());
  const Clock::time_point start = Clock::now();
  PEERLANE_RETURN_IF_ERROR(loop->run());
  side.report(("loop_async, " + loop->emitter() + " queue:").c_str(), rounds, start);
  return side.verify(rounds);
}

}  // namespace

int main(int argc, char** argv) {
  return runLoop(argc, argv, play);
}
