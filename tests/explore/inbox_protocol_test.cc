// SPDX-License-Identifier: Apache-2.0
//
// How notifications wake threads in every interleaving, and that each part of the protocol is
// needed.
#include "explore/inbox_protocol.h"

#include <gtest/gtest.h>

#include <vector>

namespace peerlane::explorer {
namespace {

std::vector<InboxRules> inboxCases() {
  std::vector<InboxRules> cases;
  for (const uint32_t notifications : {1u, 2u, 4u})
    for (const uint32_t polls : {0u, 1u, 2u})
      for (const uint32_t room : {1u, 2u})
        cases.push_back({.notifications = notifications, .polls = polls, .room = room});
  return cases;
}

TEST(InboxProtocol, LosesNoWakeUp) {
  for (const InboxRules& rules : inboxCases()) {
    const SearchReport report = exploreInbox(rules);
    ASSERT_TRUE(report.ok()) << rules.notifications << " notifications, " << rules.polls
                             << " polls, room for " << rules.room << ": " << report.toString();
  }
}

TEST(InboxProtocol, NeedsEachOfItsParts) {
  const std::vector<bool InboxRules::*> parts{
      &InboxRules::marksTaken,       &InboxRules::triesAgain,  &InboxRules::looksAfterUnlock,
      &InboxRules::wakesForTaken,    &InboxRules::tellsOfRest, &InboxRules::asksForTurnIfFull,
      &InboxRules::looksBeforeSleep,
  };
  for (size_t i = 0; i < parts.size(); ++i) {
    bool isCaught = false;
    for (InboxRules rules : inboxCases()) {
      rules.*parts[i] = false;
      isCaught = isCaught || !exploreInbox(rules).fault.empty();
    }
    EXPECT_TRUE(isCaught) << "part " << i;
  }
}

// A turn that finds the lock taken and gives up: it relies on the holder, which has looked already.
TEST(InboxProtocol, AHolderAloneIsNotEnough) {
  InboxRules rules{.notifications = 1, .polls = 1};
  rules.marksTaken = rules.triesAgain = false;
  const SearchReport report = exploreInbox(rules);
  EXPECT_EQ(report.fault, "all sleep; 1 in the slab, 0 in the inbox") << report.toString();
}

}  // namespace
}  // namespace peerlane::explorer
