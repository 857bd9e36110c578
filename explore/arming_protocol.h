// SPDX-License-Identifier: Apache-2.0
//
// How a device wakes the threads of a context (transport/verbs/shared_queues.h): it does so only
// once after its queue was armed, and a turn arms it where the bell says that no thread polls. Two
// threads that poll, leave and sleep, one of them at a time in a turn (progress.h: a thread that
// finds the turn taken looks again), and a device that makes completions at any moment.
#pragma once

#include <cstdint>

#include "explore/state_search.h"

namespace peerlane::explorer {

struct ArmingRules {
  uint32_t completions = 3;
  // The parts of the protocol, to see what each is for.
  bool looksAfterArming = true;   // a turn that has armed looks at the queue once more
  bool looksAfterLeaving = true;  // a thread that has left the bell takes a turn before it sleeps
  bool looksAgainIfTaken = true;  // and another one where it found the turn taken
  bool forgetsArming = true;      // who takes the event knows that the queue is not armed any more
  bool armsWhereNobodyPolls = true;  // a turn arms, rather than no turn at all
};

SearchReport exploreArming(const ArmingRules& rules);

}  // namespace peerlane::explorer
