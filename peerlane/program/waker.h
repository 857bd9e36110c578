// SPDX-License-Identifier: Apache-2.0
//
// Waker: the producer's half of the wake rule. The consumer counts its awake pollers in a shared
// word and, having taken itself off, looks once more before it sleeps; the producer stores, then
// reads the count and wakes the consumer by its descriptor only if nobody is awake. Between the two
// accesses of each side stands a sequentially consistent fence or operation, so one of them sees
// the other.
#pragma once

#include <atomic>
#include <cstdint>

#include "peerlane/os/fd.h"

namespace peerlane {

struct Waker {
  const std::atomic<uint32_t>* pollers =
      nullptr;            // in the consumer's bell page; written by the consumer only
  int eventFd = -1;       // borrowed; an eventfd of this process, or
  bool isSocket = false;  // a socket of the consumer, which may be anybody

  // Call after a store of the word the consumer polls and a sequentially consistent fence, or a
  // sequentially consistent operation on it.
  void ring() const {
    if (pollers == nullptr || pollers->load(std::memory_order_seq_cst) != 0) return;
    if (isSocket)
      knock(eventFd);
    else
      signalEventFd(eventFd);
  }
};

}  // namespace peerlane
