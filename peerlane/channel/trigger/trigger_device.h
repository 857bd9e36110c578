// SPDX-License-Identifier: Apache-2.0
//
// The programs of a triggered queue inside a kernel, or in any code that the library does not run
// itself: a flat list of ops with addresses, made by TriggeredQueue::resolve(), and the function
// that runs it. A thread, a warp or a block calls it; the same source runs in CPU threads.
//
//   __global__ void step(const TriggerOp* send, uint32_t sendOps,      // a commit
//                        const TriggerOp* arrived, uint32_t waitOps,   // a peek
//                        const uint64_t* status) {
//     const peerlane::port::ThisBlock block;
//     if (runTriggered(block, arrived, waitOps, status) != TriggerOutcome::kOk) return;
//     ... use what arrived, write what is to be sent ...
//     runTriggered(block, send, sendOps, status);
//   }
//
// The host must have enqueued each program before (TriggeredQueue::enqueueCommit, enqueuePeek), and
// commits run in the order of their numbers. All ops are run in order; a team's copies are shared
// out among its members. After a wait the whole team may read what the wait has seen; before the
// first op of a commit the team's own writes are made visible to it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "peerlane/core/device_code.h"
#include "peerlane/program/model/op.h"
#include "peerlane/program/words/shared_word.h"
#include "peerlane/program/words/team.h"

namespace peerlane {

// One op with its addresses. 48 bytes.
struct alignas(16) TriggerOp {
  OpCode code = OpCode::kFence;  // kCopy, kStore, kAdd64, kWait, kFence; no lists
  Width width = Width::k64;
  Order order = Order::kRelaxed;
  Compare compare = Compare::kGreaterEqual;
  std::byte* to = nullptr;          // the destination, or the word
  const std::byte* from = nullptr;  // kCopy
  uint64_t bytes = 0;               // kCopy
  uint64_t operand = 0;             // of words
};
static_assert(sizeof(TriggerOp) == 48);

enum class TriggerOutcome : uint32_t {
  kOk = 0,
  kTimeout = 1,  // the bound is over; the list may be run again from its beginning if it is a peek
  kEnded = 2,    // the queue has failed: TriggeredQueue::status() says why
};

namespace trigger {

// Without a bound.
inline constexpr uint64_t kForever = ~uint64_t{0};

// The status word lies in the host's memory, so a waiter looks at it once in so many polls.
inline constexpr uint32_t kPollsPerStatusLook = 128;

PEERLANE_DEVICE inline uint64_t loadWord(const TriggerOp& op) {
  return op.width == Width::k32 ? port::loadAcquire(reinterpret_cast<const uint32_t*>(op.to))
                                : port::loadAcquire(reinterpret_cast<const uint64_t*>(op.to));
}

PEERLANE_DEVICE inline bool satisfies(const TriggerOp& op, uint64_t word) {
  const bool isShort = op.width == Width::k32;
  switch (op.compare) {
    case Compare::kGreaterEqual:
      return isShort ? static_cast<int32_t>(static_cast<uint32_t>(word - op.operand)) >= 0
                     : static_cast<int64_t>(word - op.operand) >= 0;
    case Compare::kEqual: return word == op.operand;
    case Compare::kAnd: return (word & op.operand) != 0;
    case Compare::kNor: return (~(word | op.operand) & (isShort ? 0xffffffffu : ~uint64_t{0})) != 0;
  }
  return false;
}

PEERLANE_DEVICE inline void store(const TriggerOp& op) {
  if (op.width == Width::k32) {
    auto* const word = reinterpret_cast<uint32_t*>(op.to);
    const auto value = static_cast<uint32_t>(op.operand);
    op.order == Order::kRelease ? port::storeRelease(word, value) : port::storeRelaxed(word, value);
    return;
  }
  auto* const word = reinterpret_cast<uint64_t*>(op.to);
  op.order == Order::kRelease ? port::storeRelease(word, op.operand)
                              : port::storeRelaxed(word, op.operand);
}

// By one thread.
PEERLANE_DEVICE inline TriggerOutcome wait(const TriggerOp& op, const uint64_t* status,
                                           uint64_t boundNs) {
  const uint64_t begin = boundNs == trigger::kForever ? 0 : port::nanoseconds();
  for (uint32_t looks = 1;; ++looks) {
    const uint64_t word = loadWord(op);
    if (satisfies(op, word)) {
      const bool isReleased = op.width == Width::k64 && word >= kPoison && word < kPoison << 1;
      return isReleased ? TriggerOutcome::kEnded : TriggerOutcome::kOk;
    }
    if (looks % kPollsPerStatusLook == 0) {
      if (port::loadAcquire(status) != 0) return TriggerOutcome::kEnded;
      if (boundNs != trigger::kForever && port::nanoseconds() - begin >= boundNs)
        return TriggerOutcome::kTimeout;
    }
    port::pauseBetween(looks);
  }
}

}  // namespace trigger

// Runs `count` ops. `status`: TriggerList::status. `boundNs`: for each wait.
template <typename Team>
PEERLANE_DEVICE TriggerOutcome runTriggered(const Team& team, const TriggerOp* ops, uint32_t count,
                                            const uint64_t* status,
                                            uint64_t boundNs = trigger::kForever) {
  // What other members wrote goes out with the words of rank 0.
  team.sync();
  for (uint32_t i = 0; i < count; ++i) {
    const TriggerOp& op = ops[i];
    if (op.code == OpCode::kCopy) {
      team.copy(op.to, op.from, op.bytes);
      port::fenceSystem();  // this member's share, before the barrier
      team.sync();
      continue;
    }
    uint32_t outcome = 0;
    if (team.rank() == 0) {
      // A release of rank 0 covers what it has seen of the others by the barrier.
      if (op.code == OpCode::kWait)
        outcome = static_cast<uint32_t>(trigger::wait(op, status, boundNs));
      else if (op.code == OpCode::kStore)
        trigger::store(op);
      else if (op.code == OpCode::kAdd64)
        port::addRelease(reinterpret_cast<uint64_t*>(op.to), op.operand);
      else
        port::fenceSystem();
    }
    if (op.code != OpCode::kWait) continue;
    const auto agreed = static_cast<TriggerOutcome>(team.agree(outcome));
    if (agreed != TriggerOutcome::kOk) return agreed;
    // What the wait has seen, for loads of other members that do not go to the coherent caches.
    port::fenceSystem();
  }
  return TriggerOutcome::kOk;
}

}  // namespace peerlane
