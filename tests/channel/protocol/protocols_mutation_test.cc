// SPDX-License-Identifier: Apache-2.0
//
// The explorer tested by mutation, and the protocols tested for ballast: every small mistake in a
// shipped protocol must be found in one of its scenarios. A mutant that survives is an op that does
// nothing (it goes) or an explorer that does not see.
#include <gtest/gtest.h>

#include <set>

#include "explore/explorer_mutants.h"
#include "tests/channel/protocol/protocols_scenario.h"

namespace peerlane {
namespace {

using explorer::Mutant;

class ProtocolMutation : public testing::TestWithParam<ProtocolCase> {
 protected:
  // Whether any scenario tells the mutant of one side from the original.
  bool isCaught(const std::string& what, bool ofSender) const {
    const ProtocolCase& protocol = GetParam();
    for (const Setting& setting : protocol.settings) {
      const Program sender = protocol.sender(setting.slots);
      const Program receiver = protocol.receiver(setting.slots);
      for (const Mutant& mutant : explorer::mutantsOf(ofSender ? sender : receiver)) {
        if (mutant.what != what) continue;
        const LanePair programs{ofSender ? &mutant.program : &sender,
                                ofSender ? &receiver : &mutant.program};
        const auto report = explorer::explore(protocol.scenario(programs, setting));
        if (report.violation != explorer::Violation::kNone) {
          EXPECT_NE(report.violation, explorer::Violation::kBadScenario) << report.what;
          return true;
        }
      }
    }
    return false;
  }
};

TEST_P(ProtocolMutation, EveryMutantIsCaught) {
  const ProtocolCase& protocol = GetParam();
  size_t mutants = 0;
  for (const bool ofSender : {true, false}) {
    // Rings of two slots have every mutant that rings of one have, and more.
    const Program program = ofSender ? protocol.sender(2) : protocol.receiver(2);
    for (const Mutant& mutant : explorer::mutantsOf(program)) {
      EXPECT_TRUE(isCaught(mutant.what, ofSender)) << mutant.what << "\n" << program.toString();
      ++mutants;
    }
  }
  EXPECT_GT(mutants, 3u);
  RecordProperty("mutants", static_cast<int>(mutants));
}

// Taking invisible steps at once hides no mistake and invents none.
TEST_P(ProtocolMutation, ReductionChangesNoVerdict) {
  const ProtocolCase& protocol = GetParam();
  for (const Setting& setting : protocol.settings) {
    if (setting.senders > 1 || setting.receivers > 1) continue;
    const Program sender = protocol.sender(setting.slots);
    const Program receiver = protocol.receiver(setting.slots);
    for (const Mutant& mutant : explorer::mutantsOf(sender)) {
      explorer::Scenario scenario = protocol.scenario({&mutant.program, &receiver}, setting);
      const bool reduced = explorer::explore(scenario).ok();
      scenario.reduce = false;
      EXPECT_EQ(reduced, explorer::explore(scenario).ok()) << mutant.what << ", " << setting.name();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shipped, ProtocolMutation, testing::ValuesIn(shippedProtocols()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace peerlane
