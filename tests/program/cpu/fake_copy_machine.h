// SPDX-License-Identifier: Apache-2.0
//
// FakeCopyMachine: a machine whose instructions take the time that a test says: bytes are copied
// indeed, and a clock of its own goes on. Each thread has a clock and a count of touched pages.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>

#include "peerlane/program/cpu/copy_trials.h"

namespace peerlane::cpu {

class FakeCopyMachine {
 public:
  // Nanoseconds for each KiB, of each instruction.
  using Costs = std::array<double, kCopyInstructions>;
  explicit FakeCopyMachine(Costs costs) : costs_(costs) {}

  // Requires: this object outlives the machine.
  CopyMachine machine() {
    CopyMachine machine;
    machine.candidates.fill(true);
    machine.copy = [this](CopyInstruction by, std::byte* to, const std::byte* from,
                          uint64_t bytes) {
      std::memcpy(to, from, bytes);
      const auto index = static_cast<size_t>(by);
      bytesBy_[index] += bytes;
      const double now = now_ + costs_[index] * static_cast<double>(bytes) / 1024;
      now_ = now;
      if (isMemoryNew) ++pagesTouched_;
      if (onCopy) onCopy();
    };
    machine.clocks = [] {
      const auto now = static_cast<uint64_t>(now_);
      return CopyClocks{.passed = now, .used = now};
    };
    machine.pages = [] { return pagesTouched_; };
    machine.isFar = nullptr;
    return machine;
  }

  uint64_t bytesBy(CopyInstruction by) const { return bytesBy_[static_cast<size_t>(by)]; }
  // What the calling thread has copied took until now.
  static double now() { return now_; }

  std::atomic<bool> isMemoryNew{false};
  std::function<void()> onCopy;

 private:
  const Costs costs_;
  std::array<std::atomic<uint64_t>, kCopyInstructions> bytesBy_{};
  inline static thread_local double now_ = 0;
  inline static thread_local uint64_t pagesTouched_ = 0;
};

}  // namespace peerlane::cpu
