// SPDX-License-Identifier: Apache-2.0
//
// The rounds that tests of every kind of memory and every way have in common: all bytes of a region
// are put with a signal, the other side looks at each and writes others, and these are got. Inside
// of sides (two_processes.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "tests/gpu/two_processes.h"

namespace peerlane::gputest {

struct Round {
  size_t blocks = 1;  // of about the same size, in any order
  size_t unit = 4;    // sizes and places of blocks are multiples of it
  bool onStream = false;
  Engine engine = Engine::kAuto;
};

// The active side's half. `round` counts from 1, also over calls.
void putAndGet(const Side& side, const Line& line, const Round& how, uint32_t round);
// The other side's half of all rounds, until the active side says that it ends.
void lookAndAnswer(const Side& side, const Line& line);

}  // namespace peerlane::gputest
