// SPDX-License-Identifier: Apache-2.0
//
// Peeks of triggered queues in every interleaving, and that each part of the protocol is needed.
#include "explore/peek_protocol.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace peerlane::explorer {
namespace {

const std::vector<PeekRules> kPeekCases{{.makings = 1}, {.cancels = 0}, {.cancels = 1}};

TEST(PeekProtocol, RunsWhatWasEnqueuedAndEnds) {
  for (const PeekRules& rules : kPeekCases) {
    const SearchReport report = explorePeeks(rules);
    EXPECT_TRUE(report.ok()) << int{rules.makings} << " makings, " << int{rules.cancels}
                             << " cancels: " << report.toString();
    RecordProperty("states" + std::to_string(rules.makings) + std::to_string(rules.cancels),
                   static_cast<int>(report.states));
  }
}

TEST(PeekProtocol, NeedsEachOfItsParts) {
  const struct {
    const char* name;
    bool PeekRules::*part;
    const char* fault;
  } parts[] = {
      {"abortsAtOnce", &PeekRules::abortsAtOnce, "an aborted peek runs"},
      {"knowsMaking", &PeekRules::knowsMaking, "enqueues another peek"},
      {"freesWhenLeft", &PeekRules::freesWhenLeft, "while the executor is inside"},
      {"passesIfReleased", &PeekRules::passesIfReleased, "under way for ever"},
      {"rollbackHeedsPeeks", &PeekRules::rollbackHeedsPeeks, "what was taken back"},
  };
  for (const auto& [name, part, fault] : parts) {
    std::string faults;
    for (PeekRules rules : kPeekCases) {
      rules.*part = false;
      faults += explorePeeks(rules).fault + "; ";
    }
    EXPECT_NE(faults.find(fault), std::string::npos) << name << ": " << faults;
  }
}

}  // namespace
}  // namespace peerlane::explorer
