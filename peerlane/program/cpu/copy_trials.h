// SPDX-License-Identifier: Apache-2.0
//
// CopyTrials: which instruction makes large copies, measured in this process by the program's own
// first ones: a contest for each kind of copy, by its size, by the size of its pieces, and by
// whether a memory lies on a NUMA node far from the thread that copies. TimedCopy: one such copy.
// Thread-safe; one copy at a time is timed, others that come meanwhile take what is known so far.
//
// Nothing here is a lock that is waited for: a child that was forked while a copy was timed takes
// what was known, and times nothing.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "peerlane/program/cpu/copy_contest.h"
#include "peerlane/program/cpu/copy_team.h"
#include "peerlane/program/cpu/host_copy.h"

namespace peerlane::cpu {

// What a thread's clocks say, in nanoseconds.
struct CopyClocks {
  uint64_t passed = 0;
  uint64_t used = 0;  // in which the thread ran

  // What the thread took from an earlier reading to this one: without the time in which the system
  // ran others in its place, where the system counts that so finely.
  uint64_t nanosecondsSince(const CopyClocks& earlier) const {
    const uint64_t ran = used - earlier.used;
    const uint64_t went = passed - earlier.passed;
    return ran == 0 || ran > went ? went : ran;
  }
};

// What trials need of the machine. Tests have machines of their own.
struct CopyMachine {
  // The one that runs this process.
  CopyMachine();

  CopyContest::Candidates candidates;
  std::function<void(CopyInstruction, std::byte*, const std::byte*, uint64_t)> copy;
  // Of the calling thread: its clocks, and how many pages it has touched for the first time, ever
  // since it began.
  std::function<CopyClocks()> clocks;
  std::function<uint64_t()> pages;
  // Whether one of both lies far from the calling thread; empty where nothing can.
  std::function<bool(const void*, const void*)> isFar;
};

class CopyTrials {
 public:
  // Smaller copies, and pieces that are mostly ends that are not aligned, are memcpy's.
  static constexpr uint64_t kLeastBytes = 1 << 20;
  static constexpr uint64_t kLeastPiece = 2048;
  // Pieces of so many bytes hide what an instruction takes to begin.
  static constexpr uint64_t kLongPiece = 64 << 10;

  explicit CopyTrials(CopyMachine machine = CopyMachine());
  // Of the copies that a thread of this process makes alone.
  static std::shared_ptr<CopyTrials> ofProcess();

  using Kind = size_t;
  // `bytes`: of a transfer, at least kLeastBytes, in pieces of `pieceBytes` on average, at least
  // kLeastPiece, of which one goes from `from` to `to`.
  Kind kindOf(uint64_t bytes, uint64_t pieceBytes, const void* to, const void* from) const;
  // The best one so far.
  CopyInstruction best(Kind kind) const {
    return static_cast<CopyInstruction>(known(kind) & kInstruction);
  }
  bool isDecided(Kind kind) const { return (known(kind) & kDecided) != 0; }

  const CopyMachine& machine() const { return machine_; }
  // "measured here: memcpy, from 1MiB streaming, from 16MiB memcpy so far". For people.
  std::string toString() const;

 private:
  friend class TimedCopy;
  // Of transfers from kLeastBytes on, each four times as large as the one before.
  static constexpr size_t kSizes = 4;
  static constexpr size_t kSizeFactor = 4;
  static constexpr size_t kKinds = kSizes * 2 * 2;
  static Kind kindAt(size_t size, bool isShort, bool isFar) {
    return ((isFar ? 2 : 0) + (isShort ? 1 : 0)) * kSizes + size;
  }
  // What a byte of known_ says.
  static constexpr uint8_t kInstruction = 0x0f;
  static constexpr uint8_t kBegun = 0x40;
  static constexpr uint8_t kDecided = 0x80;
  uint8_t known(Kind kind) const { return known_[kind].load(std::memory_order_relaxed); }
  void publish(Kind kind);
  std::string kindsToString(size_t first) const;

  const CopyMachine machine_;
  // Taken (acquire) by the TimedCopy that may touch the contests, and let go of (release).
  std::atomic<bool> isTiming_{false};
  std::array<CopyContest, kKinds> contests_;
  // Of each contest, for everybody else. Relaxed: nothing comes with it.
  std::array<std::atomic<uint8_t>, kKinds> known_;
};

// A copy whose instruction the contest chooses and whose slices are timed: two that are small, so
// that a slow instruction can be given up, and then as many as the copy has without being timed,
// because what an instruction costs depends on how much it is asked for. Lives in the call that
// copies; slices come from any threads. External synchronization required for the rest.
class TimedCopy {
 public:
  static constexpr uint32_t kProbes = 2;
  static constexpr uint32_t kMostSlices = CopyTeam::kMostParts + kProbes;
  // Smaller copies have no probes, or are not timed.
  static constexpr uint64_t kLeastProbeBytes = 64 << 10;
  // Asked for more at once, `rep movsb` of some processors stores past the caches: its probes,
  // which are smaller, say nothing.
  static constexpr uint64_t kMostProbedMovsb = 32 << 20;

  TimedCopy(CopyTrials& trials, CopyTrials::Kind kind);
  ~TimedCopy();
  TimedCopy(const TimedCopy&) = delete;
  TimedCopy& operator=(const TimedCopy&) = delete;

  // False where there is nothing to find out, or another copy is being timed: nothing else may be
  // called then.
  bool isOn() const { return contest_ != nullptr; }
  // Whether the best one is to copy so many bytes of a transfer of so many, untimed. Requires: on;
  // if true, nothing else may be called then.
  bool rests(uint64_t bytes, uint64_t transferBytes) {
    return contest_->rest(bytes, transferBytes);
  }
  // Of each probe of a copy of so many bytes, of which the instruction is asked for `atOnce` in one
  // call; 0: it has none.
  uint64_t probeBytes(uint64_t bytes, uint64_t atOnce) const;
  // Requires: slices <= kMostSlices.
  void begin(uint32_t slices);
  uint64_t pages() const { return trials_.machine_.pages(); }
  // Copies a slice by calling copy(instruction). Each slice once, the probes first. `pages`: what
  // the calling thread has touched before this slice; becomes what it has touched after it.
  template <typename Copy>
  void carryOut(uint32_t slice, uint64_t bytes, uint64_t& pages, const Copy& copy) {
    if (state_.load(std::memory_order_relaxed) != State::kRuns) return copy(best_);
    const CopyClocks begin = trials_.machine_.clocks();
    copy(next_);
    const CopyClocks end = trials_.machine_.clocks();
    const uint64_t before = std::exchange(pages, trials_.machine_.pages());
    judge(slice, bytes, end.nanosecondsSince(begin), pages != before);
  }
  // After all slices, of which the copy's `bytes` are, of a transfer of so many.
  void end(uint64_t bytes, uint64_t transferBytes);

 private:
  enum class State : uint8_t { kRuns, kTooDear, kNewMemory };
  struct Slice {
    double cost = 0;
    uint64_t bytes = 0;  // 0: not timed
  };
  void judge(uint32_t slice, uint64_t bytes, uint64_t nanoseconds, bool isMemoryNew);
  double medianCost();

  CopyTrials& trials_;
  const CopyTrials::Kind kind_;
  CopyContest* contest_ = nullptr;
  CopyInstruction next_ = CopyInstruction::kMemcpy;
  CopyInstruction best_ = CopyInstruction::kMemcpy;
  double mostCost_ = 0;
  uint32_t count_ = 0;
  // Relaxed, both: they decide how the rest is copied, and whoever ends the copy has waited for all
  // slices.
  std::atomic<State> state_{State::kRuns};
  std::atomic<uint32_t> dearProbes_{0};
  std::array<Slice, kMostSlices> slices_;
};

}  // namespace peerlane::cpu
