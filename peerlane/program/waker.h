// SPDX-License-Identifier: Apache-2.0
//
// Waker: the producer's half of the wake rule. The consumer counts its awake pollers in a shared
// word and, having taken itself off, looks once more before it sleeps; the producer stores, then
// reads the count and writes the consumer's eventfd only if nobody is awake. Both sides are
// sequentially consistent, so one of them sees the other.
#pragma once

#include <atomic>
#include <cstdint>

#include "peerlane/os/fd.h"

namespace peerlane {

struct Waker {
  const std::atomic<uint32_t>* pollers =
      nullptr;       // in the consumer's bell page; written by the consumer only
  int eventFd = -1;  // borrowed

  // Call after a sequentially consistent store of the word the consumer polls.
  void ring() const {
    if (pollers != nullptr && pollers->load(std::memory_order_seq_cst) == 0) signalEventFd(eventFd);
  }
};

}  // namespace peerlane
