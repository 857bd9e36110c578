// SPDX-License-Identifier: Apache-2.0
//
// The credits of a verbs link's news (transport/verbs/news.h) between two sides that sleep: each
// has words to send, takes the peer's news, and tells how many it has taken. The credits are the
// link's own class; VerbsAgent::tellTaken() and RequestCutter are followed step by step.
//
// A side turns: takes what has come, tells, sends as much as it may; when a turn finds nothing it
// sleeps, and only news wakes it. Requests arrive in their order. `anyOrder`: counts that are told
// may be placed in any order, but before news that was posted after them. One model for both
// directions, so it is about the dead ends of the two together.
#pragma once

#include <cstdint>

#include "explore/state_search.h"

namespace peerlane::explorer {

struct NewsRules {
  uint32_t window = 4;
  uint32_t words[2] = {3, 3};
  bool anyOrder = false;
  // The parts of the protocol, to see what each is for.
  bool keepsReserve = true;    // words leave the last credit
  bool asks = true;            // who uses up the last but one asks
  bool answersWake = true;     // an answer is news
  bool countsAnswers = true;   // an answer uses a credit
  bool answersAsk = true;      // an answer that uses up the last but one asks, too
  bool waitsToBeAsked = true;  // in any order: tells nothing before
};

SearchReport exploreNews(const NewsRules& rules);

}  // namespace peerlane::explorer
