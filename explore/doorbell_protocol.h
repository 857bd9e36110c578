// SPDX-License-Identifier: Apache-2.0
//
// How a doorbell queue launches what was posted (channel/trigger/triggered_core.h). A poster fills
// entries of a mailbox, makes a commit of each and may take the last one back; then the numbers of
// entries and commits are used again. An executor enqueues commits by ids, old ones too, and stores
// the bell. A server rings the mailbox up to the bell, an agent performs entries, a thread
// publishes their ends into the count, another one may give the queue up at any moment, and a
// settler lets go of the memory of what is over. A waiter waits for the count of each commit that
// was enqueued.
//
// The claims: what was taken back is never performed; what was enqueued is performed once and in
// order, after its bytes were there, unless the queue failed; the count never passes what is
// complete; waiters are released, and find the reason; an id that is over changes nothing; no
// entry is filled while it is launched; memory is used by nobody after it was let go, and it is let
// go of in the end; a queue fails only with a reason.
#pragma once

#include <cstdint>

#include "explore/state_search.h"

namespace peerlane::explorer {

struct DoorbellRules {
  uint8_t makings = 3;   // commits that are made; some of them with the number of another one
  uint8_t cancels = 0;   // 1: the queue is given up at any moment
  uint8_t failures = 0;  // 1: an entry fails
  uint8_t rogues = 0;    // 1: a device stores the number of something that was not enqueued
  // The parts of the protocol, to see what each is for.
  bool rollsBackAtOnce = true;        // compares and exchanges, rather than load and store
  bool rollsBackFirst = true;         // before the entries are unclaimed
  bool allowsBeforeRun = true;        // enqueue publishes the number before the executor stores it
  bool checksAllowed = true;          // the server fails a queue whose bell passes that number
  bool readsBellFirst = true;         // by acquire: what is read next is not older
  bool ringsToBell = true;            // and not everything that was claimed
  bool comparesCount = true;          // before it is set, so that a poison stays
  bool tellsStatusFirst = true;       // before the poison
  bool knowsMaking = true;            // the making is a part of the state word
  bool enqueuesInOrder = true;        // only the commit that comes next
  bool abortsFirst = true;            // who gives up aborts the mailbox before others can know
  bool takesBeforeExplaining = true;  // the settler reads only what the poster can take no more
  bool checksBeforeEnqueued = true;   // the executor reads the commit's memory before the settler
                                      // may let go of it
};

SearchReport exploreDoorbell(const DoorbellRules& rules);

}  // namespace peerlane::explorer
