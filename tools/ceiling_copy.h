// SPDX-License-Identifier: Apache-2.0
//
// The raw limit of moving blocks without this library: a loop of memcpy where the other process'
// memory is mapped, process_vm_readv/writev where it is not. Also a clock. Thread-safe: no state.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <span>
#include <thread>

#include "peerlane/core/status.h"

namespace peerlane::bench {

struct RawPiece {
  std::byte* local = nullptr;
  std::byte* other = nullptr;  // in this process for copies, in the other one for process_vm_*
  size_t bytes = 0;
};

// local to other, or back. No fence: whoever announces the bytes orders them.
void copyPieces(std::span<const RawPiece> pieces, bool isPut);

// The same through the kernel, as many pieces per call as it takes. kSystem, and kPermissionDenied
// where the system forbids it.
Status kernelCopyPieces(pid_t other, std::span<const RawPiece> pieces, bool isPut);

using Clock = std::chrono::steady_clock;
inline double microsecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// Ends a spin that waits for another process. Looks at the clock, and lets others run, once in 8192
// turns: far longer than an answer takes, unless who should answer has no core.
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
