// SPDX-License-Identifier: Apache-2.0
//
// Hardware queues of the software GPU: CUDA_DEVICE_MAX_CONNECTIONS of them for each device, 8 where
// that is not set, which its streams share by turns as they are made. In a queue nothing begins
// before what was put there earlier: what waits at its head holds up all streams behind it,
// whatever they do. A queue holds 1024 pieces of work: who puts more there waits until one leaves,
// whatever stream it is for, and with it, as on the real thing, everybody who makes a stream, an
// event or memory, or pins some. Streams of all priorities share the same ones, as there, unless
// SOFTWARE_GPU_PRIORITIES=apart. Any thread may call.
#pragma once

#include <cstdint>

#include "peerlane/core/mutex.h"

namespace peerlane::softgpu {

class HardwareQueue {
 public:
  // That of a new stream.
  static HardwareQueue& next(int device, int priority);
  static int leastPriority() { return 0; }
  static int greatestPriority() { return -5; }

  // The place behind all that is in it; waits while it is full.
  uint64_t add();
  // Until all that was put there earlier has left.
  void waitFor(uint64_t place);
  void leave();
  // Until no thread waits in add(), of any queue.
  static void waitForTheStopped();

 private:
  static constexpr uint64_t kMost = 1024;
  Mutex mutex_;
  Condition changed_;
  uint64_t added_ PEERLANE_GUARDED_BY(mutex_) = 0;
  uint64_t gone_ PEERLANE_GUARDED_BY(mutex_) = 0;
};

}  // namespace peerlane::softgpu
