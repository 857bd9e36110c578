// SPDX-License-Identifier: Apache-2.0
//
// ProgramRunner: an executor that the library knows nothing of. It runs the program of a commit or
// peek op by op, with the addresses of TriggeredQueue::targets(). One thread at a time.
#pragma once

#include <atomic>
#include <cstring>
#include <span>
#include <thread>
#include <vector>

#include "peerlane/channel/trigger/triggered_queue.h"
#include "peerlane/program/words/word.h"

namespace peerlane {

class ProgramRunner {
 public:
  explicit ProgramRunner(std::span<const TriggerRow> rows) : rows_(rows.begin(), rows.end()) {}

  // Requires: it was enqueued. Nothing of the program is read after its last op, with which the
  // poster may make another one in its place. False: a wait was released and not satisfied.
  bool run(const Program& program) const {
    const std::vector<Op> ops(program.ops.begin(), program.ops.end());
    const std::vector<CopyLayout> lists(program.lists.begin(), program.lists.end());
    for (const Op& op : ops) {
      if (op.code == OpCode::kCopyList)
        lists[op.list].eachBlock([this](const Segment& one) { copy(one); });
      else if (op.code == OpCode::kCopy)
        copy({op.to.target, op.from.target, op.to.offset, op.from.offset, op.bytes});
      else if (!word(op))
        return false;
    }
    return true;
  }
  std::atomic_ref<uint64_t> wordOf(TargetId target, uint64_t offset = 0) const {
    return std::atomic_ref(*reinterpret_cast<uint64_t*>(at(target, offset)));
  }

 private:
  std::byte* at(TargetId target, uint64_t offset) const { return rows_[target].host + offset; }
  // Not instrumented, as firstDifference().
  __attribute__((noinline, no_sanitize("thread"))) void copy(const Segment& one) const {
    volatile std::byte* const to = at(one.to, one.toOffset);
    const volatile std::byte* const from = at(one.from, one.fromOffset);
    for (uint64_t i = 0; i < one.bytes; ++i) to[i] = from[i];
  }
  bool word(const Op& op) const {
    const std::atomic_ref<uint64_t> word = wordOf(op.to.target, op.to.offset);
    const auto operand = static_cast<uint64_t>(op.operand.delta);
    if (op.code == OpCode::kStore) word.store(operand, std::memory_order_release);
    if (op.code == OpCode::kAdd64) word.fetch_add(operand, std::memory_order_release);
    if (op.code != OpCode::kWait) return true;
    uint64_t seen = 0;
    while (static_cast<int64_t>((seen = word.load(std::memory_order_acquire)) - operand) < 0)
      std::this_thread::yield();
    return !isPoison(seen);
  }

  const std::vector<TriggerRow> rows_;
};

}  // namespace peerlane
