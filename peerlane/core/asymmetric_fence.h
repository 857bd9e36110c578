// SPDX-License-Identifier: Apache-2.0
//
// A pair of fences for "store my word, then read yours" between a side that does this all the time
// and a side that does it seldom. Where the kernel can run a barrier on every core that runs a
// thread of this process, the frequent side pays nothing. Only for threads of one process: the
// kernel's barrier does not reach another process, so words in shared memory need sequentially
// consistent operations on both sides. Thread-safe.
#pragma once

#include <atomic>

#include "peerlane/core/device_code.h"
#include "peerlane/core/status.h"

namespace peerlane {

namespace internal {
// A property of the process (the kernel keeps the registration with the address space), hence
// global. Written by prepareAsymmetricFence, sequentially consistent; read by lightFence with
// acquire and by heavyFence after a full fence. So when a heavy side still finds it false, every
// light side that found it true loads later than that, and sees the heavy side's store.
inline std::atomic<bool> light_fence_is_free{false};

void fullFence();
}  // namespace internal

// Registers the process with the kernel; cheap, and repeated calls do nothing. Without it, or when
// it fails, both fences are full fences and give the same guarantees. Returns kNotSupported, with
// the reason, where the kernel cannot do it: worth a line in a report, not an error. Thread: may
// run while others already use the fences.
Status prepareAsymmetricFence();

// Between a thread's store and its load of the other side's word. Partner: heavyFence().
PEERLANE_ALWAYS_INLINE void lightFence() {
#if !PEERLANE_THREAD_SANITIZER
  if (internal::light_fence_is_free.load(std::memory_order_acquire)) {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    return;
  }
#endif
  internal::fullFence();
}

// The same for the seldom side; takes a system call (microseconds). Ends the process where the
// kernel registered it and refuses the barrier now (a seccomp filter that came later). Ensures: of
// two threads that each store, fence (at least one of them heavily) and load the other's word, at
// least one sees the other's store.
void heavyFence();

}  // namespace peerlane
