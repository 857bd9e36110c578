// SPDX-License-Identifier: Apache-2.0
//
// How the slot of a peek is used again and again (channel/trigger/commit_slot.h). A poster writes
// the program of a peek, makes it, and may abort it; an executor enqueues peeks by ids, old ones
// too, runs the program, which says at its end that it was passed, and leaves. The peeks wait for a
// commit, which the poster may take back and make again, and the queue may be given up. (The slot
// of a mapped commit is freed alike: the last op of its program stores the count.)
//
// The claims: an aborted peek never runs; an id that is over changes nothing; no program is written
// while an executor is inside; no peek waits for ever, nor is one under way for ever.
#pragma once

#include <cstdint>

#include "explore/state_search.h"

namespace peerlane::explorer {

struct PeekRules {
  uint8_t makings = 3;
  uint8_t commits = 2;  // makings of the commit
  uint8_t cancels = 1;
  // The parts of the protocol, to see what each is for.
  bool abortsAtOnce = true;        // compares and exchanges, rather than load and store
  bool knowsMaking = true;         // the making is a part of the state word
  bool freesWhenLeft = true;       // and not when the program says that it was passed
  bool passesIfReleased = true;    // an executor says so, too, where the wait was released
  bool rollbackHeedsPeeks = true;  // a commit is not taken back while a peek of it is under way
};

SearchReport explorePeeks(const PeekRules& rules);

}  // namespace peerlane::explorer
