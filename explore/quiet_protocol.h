// SPDX-License-Identifier: Apache-2.0
//
// Quiet words of a verbs link: words that are written without news while threads of the peer poll
// (VerbsAgent::{tellPolls,release,arrived}, RequestCutter::{cutWord,tellPolls,wake},
// SharedQueues::{poll,stopPolling}). A writer with words to send, and a side that polls, says so
// after some news, stops, looks a last time and sleeps.
//
// A device acknowledges a write before it has placed it in memory. It places what comes to it in
// the order in which that came, answers to reads included, and answers a read when the writes
// before it are placed; but a completion of an own write may be seen before a write of the peer
// that came earlier. Requests, answers and acknowledgements travel each in their order, and as late
// as they like. The claim: nobody sleeps for good while a word was not looked at. How the writer is
// woken is explored in news_protocol.h: here it turns whenever there is something to do.
#pragma once

#include <cstdint>

#include "explore/state_search.h"

namespace peerlane::explorer {

struct QuietRules {
  uint32_t words = 4;
  uint32_t window = 3;   // news that may be under way; words leave the last one
  uint32_t early = 2;    // news taken that are told unasked
  uint32_t fewNews = 1;  // that come while it polls, before it says so
  // The parts of the protocol, to see what each is for.
  bool readsAfterStopping = true;  // "I stopped" is answered when it stands in the writer's memory
  bool answerWakes = true;         // and that answer brings one more look
  bool looksAtEnd = true;          // the writer, when a quiet word was acknowledged
  bool stopsBeforeLastLook = true;
  bool owesUntilSent = true;  // a wake for which there is no credit is sent later
};

SearchReport exploreQuiet(const QuietRules& rules);

}  // namespace peerlane::explorer
