// SPDX-License-Identifier: Apache-2.0
//
// Quiet words of verbs links in every interleaving, and that each part of the protocol is needed.
#include "explore/quiet_protocol.h"

#include <gtest/gtest.h>

namespace peerlane::explorer {
namespace {

TEST(QuietProtocol, LeavesNoWordToASleeper) {
  for (const uint32_t window : {3u, 4u})
    for (const uint32_t early : {1u, 2u})
      for (const uint32_t fewNews : {1u, 2u}) {
        const SearchReport report =
            exploreQuiet({.words = 3, .window = window, .early = early, .fewNews = fewNews});
        ASSERT_TRUE(report.ok()) << "window " << window << ", early " << early << ", few news "
                                 << fewNews << ": " << report.toString();
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
