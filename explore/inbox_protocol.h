// SPDX-License-Identifier: Apache-2.0
//
// How notifications wake the threads that want them (channel/signal/notification_inbox.h,
// progress/turn_mutex.h). A peer leaves notifications in the slab and rings. The progress thread
// takes them into the inbox in turns that only try its lock, makes the descriptor readable, and
// sleeps after a turn that found nothing. One thread of the program polls now and then; another one
// sleeps on the descriptor, and takes one notification each time that it is woken.
#pragma once

#include <cstdint>

#include "explore/state_search.h"

namespace peerlane::explorer {

struct InboxRules {
  uint32_t notifications = 4;
  uint32_t polls = 2;  // of the thread that polls now and then
  uint32_t slots = 2;  // in the slab
  uint32_t room = 2;   // in the inbox
  // The parts of the protocol, to see what each is for.
  bool marksTaken = true;         // a turn that finds the lock taken says so,
  bool triesAgain = true;         // and tries once more
  bool looksAfterUnlock = true;   // the holder looks for the mark after it has let go, not before
  bool wakesForTaken = true;      // and wakes the progress thread for it
  bool tellsOfRest = true;        // a poll that took several makes the descriptor readable
  bool asksForTurnIfFull = true;  // one that makes room in a full inbox has a turn look
  bool looksBeforeSleep = true;   // the progress thread takes a turn after it has said it sleeps
};

SearchReport exploreInbox(const InboxRules& rules);

}  // namespace peerlane::explorer
