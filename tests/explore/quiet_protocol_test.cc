// SPDX-License-Identifier: Apache-2.0
//
// Quiet words of verbs links in every interleaving, and that each part of the protocol is needed.
#include "explore/quiet_protocol.h"

#include <gtest/gtest.h>

namespace peerlane::explorer {
namespace {

TEST(QuietProtocol, LeavesNoWordToASleeper) {
  for (const QuietRules& rules : {QuietRules{.words = 3, .window = 3, .early = 1, .fewNews = 1},
                                  QuietRules{.words = 3, .window = 3, .early = 2, .fewNews = 1},
                                  QuietRules{.words = 3, .window = 4, .early = 2, .fewNews = 2}}) {
    const SearchReport report = exploreQuiet(rules);
    ASSERT_TRUE(report.ok()) << "window " << rules.window << ", early " << rules.early
                             << ", few news " << rules.fewNews << ": " << report.toString();
  }
}

// Two words show most of it; to use up the credits takes a third.
TEST(QuietProtocol, NeedsEachOfItsParts) {
  for (bool QuietRules::*const part :
       {&QuietRules::readsAfterStopping, &QuietRules::answerWakes, &QuietRules::looksAtEnd,
        &QuietRules::stopsBeforeLastLook, &QuietRules::owesUntilSent}) {
    QuietRules rules{.words = 3};
    rules.*part = false;
    const SearchReport report = exploreQuiet(rules);
    EXPECT_NE(report.fault.find("was not looked at, and all sleep"), std::string::npos)
        << report.toString();
  }
}

}  // namespace
}  // namespace peerlane::explorer
