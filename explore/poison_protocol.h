// SPDX-License-Identifier: Apache-2.0
//
// How the waits of a mapped queue are released (channel/trigger/triggered_core.h). The program of a
// commit is the transfer itself, and its last op stores the count, also over a poison that stands
// there. An executor enqueues and runs commits one after another, a waiter waits for each, and the
// queue is given up at any moment. A task then asserts the poison again until each commit that was
// enqueued has been passed, and lets go of what it moves.
//
// The claims: the waiter is released in every case; a commit's memory is let go of, and not while
// the executor copies.
#pragma once

#include <cstdint>

#include "explore/state_search.h"

namespace peerlane::explorer {

struct PoisonRules {
  uint8_t commits = 3;
  uint8_t cancels = 1;
  // The parts of the protocol, to see what each is for.
  bool assertsAgain = true;       // a task does, rather than nobody
  bool staysUntilPassed = true;   // and ends only when each commit was passed
  bool looksAfterEnqueue = true;  // who has enqueued a commit of a queue that failed begins it anew
  bool knowsWhatItPoisoned = true;  // a count that the poison replaced says what was passed
  bool waitsForPassing = true;      // before it lets go
};

SearchReport explorePoison(const PoisonRules& rules);

}  // namespace peerlane::explorer
