// SPDX-License-Identifier: Apache-2.0
//
// Sleeper: what one side of a ring sleeps on, for tests of its wake-ups. Asleep when made.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "peerlane/os/fd.h"
#include "peerlane/program/model/waker.h"

namespace peerlane {

struct Sleeper {
  std::atomic<uint64_t> word{0};
  std::atomic<uint64_t> rungAt{bell_word::kNever};
  Fd event = makeEventFd().value();
  Waker waker() { return {&word, &rungAt, event.get()}; }
  // Sleeps anew, if so.
  bool rung() {
    if (drainEventFd(event.get()) == 0) return false;
    word.fetch_add(bell_word::kPoller);
    word.fetch_add(bell_word::kLeave);
    return true;
  }
  // Stays asleep from now on: every change that matters must ring.
  void sleep() {
    while (!rung()) std::this_thread::yield();
  }
};

}  // namespace peerlane
