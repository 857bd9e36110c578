// SPDX-License-Identifier: Apache-2.0
//
// How a verbs link remakes a queue pair that failed. One end posts works of some mailboxes, the
// other end's program sees words and then uses the buffers before them anew. The pair may fail at
// either end at any moment, also while it is being remade: of the requests on their way any number
// was executed, and acknowledgements are lost. Each end then ends its pair, takes what completions
// there are, and says through the line (transport/link_line.h) which pair comes next and how many
// news it has taken; with both said, the new pair is joined.
//
// The fate of works without an answer: all that were executed before the last news that the peer
// has taken are done. A quiet word or an addition after that is in doubt, unless news before it was
// not taken: its mailbox ends. Everything else is posted again.
//
// The claims: each work ends once; nothing that was reported as done is posted again; no word or
// addition takes effect twice, and no put after its word was seen; words come after their bytes; a
// mailbox that ended does not go on; both ends get on, also where both have failed at once.
#pragma once

#include <cstdint>
#include <vector>

#include "explore/state_search.h"

namespace peerlane::explorer {

struct RemakeWork {
  enum class Kind : uint8_t { kPut, kNews, kQuiet, kAddition };  // a word with news, or without
  Kind kind = Kind::kPut;
  uint32_t mailbox = 0;
};

struct RemakeRules {
  std::vector<RemakeWork> works{};
  uint32_t failures = 2;
  // The parts of the protocol, to see what each is for.
  bool endsBeforeSaying = true;      // the old pair, before the end says how many news it has taken
  bool drainsBeforeCounting = true;  // takes the completions that are there
  bool believesCount = true;         // of news: what the peer has taken was executed
  bool doubtsQuietWords = true;
  bool doubtsAdditions = true;
  bool endsMailbox = true;     // with the one that is in doubt, those before and after it
  bool keepsDone = true;       // works that were reported as done stay so
  bool answers = true;         // an end that has not failed itself remakes its pair, too
  bool knowsItsAnswer = true;  // two that failed at once take what the other says for an answer
};

SearchReport exploreRemake(const RemakeRules& rules);

}  // namespace peerlane::explorer
