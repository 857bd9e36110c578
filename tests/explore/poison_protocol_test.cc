// SPDX-License-Identifier: Apache-2.0
//
// How mapped queues release their waiters in every interleaving, and that each part of the protocol
// is needed.
#include "explore/poison_protocol.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace peerlane::explorer {
namespace {

const std::vector<PoisonRules> kPoisonCases{
    {.commits = 1, .cancels = 1}, {.commits = 3, .cancels = 0}, {.commits = 3, .cancels = 1}};

TEST(PoisonProtocol, ReleasesTheWaiterAndLetsGo) {
  for (const PoisonRules& rules : kPoisonCases) {
    const SearchReport report = explorePoison(rules);
    EXPECT_TRUE(report.ok()) << int{rules.commits} << " commits, " << int{rules.cancels}
                             << " cancels: " << report.toString();
    RecordProperty("states" + std::to_string(rules.commits) + std::to_string(rules.cancels),
                   static_cast<int>(report.states));
  }
}

TEST(PoisonProtocol, NeedsEachOfItsParts) {
  const struct {
    const char* name;
    bool PoisonRules::*part;
    const char* fault;
  } parts[] = {
      {"assertsAgain", &PoisonRules::assertsAgain, "for ever"},
      {"staysUntilPassed", &PoisonRules::staysUntilPassed, "for ever"},
      {"looksAfterEnqueue", &PoisonRules::looksAfterEnqueue, "for ever"},
      {"knowsWhatItPoisoned", &PoisonRules::knowsWhatItPoisoned, "keeps its memory"},
      {"waitsForPassing", &PoisonRules::waitsForPassing, "while the executor copies"},
  };
  for (const auto& [name, part, fault] : parts) {
    std::string faults;
    for (PoisonRules rules : kPoisonCases) {
      rules.*part = false;
      faults += explorePoison(rules).fault + "; ";
    }
    EXPECT_NE(faults.find(fault), std::string::npos) << name << ": " << faults;
  }
}

}  // namespace
}  // namespace peerlane::explorer
