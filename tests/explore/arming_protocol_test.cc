// SPDX-License-Identifier: Apache-2.0
//
// Sleep over verbs links in every interleaving, and that each part of the protocol is needed.
#include "explore/arming_protocol.h"

#include <gtest/gtest.h>

namespace peerlane::explorer {
namespace {

TEST(ArmingProtocol, LosesNoWakeUp) {
  const ArmingRules rules;
  const SearchReport report = exploreArming(rules);
  EXPECT_TRUE(report.ok()) << report.toString();
  RecordProperty("states", static_cast<int>(report.states));
}

TEST(ArmingProtocol, NeedsEachOfItsParts) {
  for (bool ArmingRules::*const part :
       {&ArmingRules::looksAfterArming, &ArmingRules::looksAfterLeaving,
        &ArmingRules::looksAgainIfTaken, &ArmingRules::forgetsArming,
        &ArmingRules::armsWhereNobodyPolls}) {
    ArmingRules rules;
    rules.*part = false;
    EXPECT_FALSE(exploreArming(rules).fault.empty());
  }
}

}  // namespace
}  // namespace peerlane::explorer
