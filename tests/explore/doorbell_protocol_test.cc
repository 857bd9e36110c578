// SPDX-License-Identifier: Apache-2.0
//
// Doorbell queues in every interleaving, and that each part of the protocol is needed.
#include "explore/doorbell_protocol.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace peerlane::explorer {
namespace {

std::vector<DoorbellRules> doorbellCases() {
  return {{}, {.cancels = 1}, {.failures = 1}, {.rogues = 1}, {.cancels = 1, .failures = 1}};
}

TEST(DoorbellProtocol, LaunchesWhatWasEnqueuedAndNothingElse) {
  for (const DoorbellRules& rules : doorbellCases()) {
    const SearchReport report = exploreDoorbell(rules);
    EXPECT_TRUE(report.ok()) << int{rules.cancels} << " cancels, " << int{rules.failures}
                             << " failures, " << int{rules.rogues}
                             << " rogues: " << report.toString();
    RecordProperty("states" + std::to_string(rules.cancels) + std::to_string(rules.failures) +
                       std::to_string(rules.rogues),
                   static_cast<int>(report.states));
  }
}

TEST(DoorbellProtocol, NeedsEachOfItsParts) {
  const struct {
    const char* name;
    bool DoorbellRules::*part;
    const char* fault;
  } parts[] = {
      {"rollsBackAtOnce", &DoorbellRules::rollsBackAtOnce, "memory that was let go"},
      {"rollsBackFirst", &DoorbellRules::rollsBackFirst, "filled that was enqueued"},
      {"allowsBeforeRun", &DoorbellRules::allowsBeforeRun, "each number was enqueued"},
      {"checksAllowed", &DoorbellRules::checksAllowed, "performed that was not enqueued"},
      {"readsBellFirst", &DoorbellRules::readsBellFirst, "each number was enqueued"},
      {"ringsToBell", &DoorbellRules::ringsToBell, "performed that was not enqueued"},
      {"comparesCount", &DoorbellRules::comparesCount, "for ever"},
      {"tellsStatusFirst", &DoorbellRules::tellsStatusFirst, "finds no reason"},
      {"knowsMaking", &DoorbellRules::knowsMaking, "enqueues another commit"},
      {"enqueuesInOrder", &DoorbellRules::enqueuesInOrder, "performed that was not enqueued"},
      {"abortsFirst", &DoorbellRules::abortsFirst, "whose memory was let go"},
      {"takesBeforeExplaining", &DoorbellRules::takesBeforeExplaining, "the poster let go"},
      {"checksBeforeEnqueued", &DoorbellRules::checksBeforeEnqueued, "looks at memory"},
  };
  for (const auto& [name, part, fault] : parts) {
    std::string faults;
    for (DoorbellRules rules : doorbellCases()) {
      rules.*part = false;
      faults += exploreDoorbell(rules).fault + "; ";
    }
    EXPECT_NE(faults.find(fault), std::string::npos) << name << ": " << faults;
  }
}

}  // namespace
}  // namespace peerlane::explorer
