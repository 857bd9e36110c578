// SPDX-License-Identifier: Apache-2.0
//
// The raw limit of moving blocks without this library: the fastest of the ways in which one CPU
// copies between two processes. Also a clock. Thread-safe: no state.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "peerlane/core/status.h"

namespace peerlane::bench {

struct RawPiece {
  std::byte* local = nullptr;
  std::byte* other = nullptr;  // the other side's bytes as this process sees them; null: not mapped
  std::byte* there = nullptr;  // their address in the other process, for process_vm_*
  size_t bytes = 0;
};

enum class CopyWay : uint8_t {
  kMemcpy,
  kStreaming,  // AVX2 loads, and stores past the caches
  kMovsb,      // rep movsb
  kKernel,     // process_vm_writev, process_vm_readv
};
std::string nameOf(CopyWay way, bool isPut);

// Those that reach such pieces and that this CPU has.
std::vector<CopyWay> copyWays(bool isMapped, bool throughKernel);

// `trial` copies once in this way and returns its microseconds. Each way has one turn that does not
// count and then three in turns with the others; the least time wins. A single way is not tried. A
// way that the system forbids (kPermissionDenied) is left out, unless none is left.
Result<CopyWay> fastestWay(std::span<const CopyWay> ways,
                           const std::function<Result<double>(CopyWay)>& trial);

// local to other, or back; `owner` is the other process, for kKernel. No fence: the caller, which
// announces the bytes, must order them (stores past the caches are ordered here). Errors, of
// kKernel alone: kSystem, and kPermissionDenied where the system forbids it.
Status copyPieces(CopyWay way, pid_t owner, std::span<const RawPiece> pieces, bool isPut);

using Clock = std::chrono::steady_clock;
inline double microsecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// Ends a spin that waits for another process. Looks at the clock, and lets others run, once in 8192
// turns: far longer than an answer takes, unless the other process has no core.
class SpinLimit {
 public:
  bool over() {
    // A pause now and then leaves the core to a sibling thread; the raw limit is lower with it.
    if ((++turns_ & 7) == 0) __builtin_ia32_pause();
    if ((turns_ & 0x1fff) != 0) [[likely]]
      return false;
    std::this_thread::yield();
    const Clock::time_point now = Clock::now();
    if (end_ == Clock::time_point{}) end_ = now + std::chrono::seconds(20);
    return now > end_;
  }

 private:
  uint64_t turns_ = 0;
  Clock::time_point end_{};  // the clock is not read while the wait is short
};
Status spinOver();

}  // namespace peerlane::bench
