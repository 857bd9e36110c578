// SPDX-License-Identifier: Apache-2.0
//
// Every interleaving of the mailbox: a poster with several entries in flight, an agent that
// performs them. What an entry asks for is a copy of the poster's payload to a place that the
// poster reads when the entry has completed.
#include <gtest/gtest.h>

#include "explore/explorer.h"
#include "explore/explorer_mutants.h"
#include "explore/mailbox_protocol.h"

namespace peerlane::explorer {
namespace {

constexpr uint64_t kBytes = 32;

struct MailboxPrograms {
  Program post;
  Program await;
  Program take;
  Program complete;
};

MailboxPrograms programsOf(uint32_t slots) {
  return {mailboxPost(slots), mailboxAwait(slots), mailboxTake(slots), mailboxComplete(slots)};
}

Program performProgram() {
  ProgramBuilder program("perform");
  program.remote("place");
  program.remote("payload");
  program.copy({.target = 0}, {.target = 1}, kBytes);
  return program.build();
}

// `inFlight` entries are posted before the first is awaited.
Scenario scenarioOf(const MailboxPrograms& programs, uint32_t slots, uint32_t entries,
                    uint32_t inFlight) {
  static const Program perform = performProgram();
  Scenario scenario;
  scenario.areas = {{"entry", 0, kMailboxEntryBytes},
                    {"entries", 1, uint64_t{kMailboxEntryBytes} * slots},
                    {"doorbell", 1, 8},
                    {"completion", 0, 8},
                    {"work", 1, kMailboxEntryBytes}};
  const Range entry{0, 0, kMailboxEntryBytes};
  const Range ring{1, 0, 0};
  const Range doorbell{2, 0, 8};
  const Range completion{3, 0, 8};
  const Range work{4, 0, kMailboxEntryBytes};
  Actor poster{"poster", 0, {}};
  Actor agent{"agent", 1, {}};
  const auto await = [&](uint32_t i) {
    const uint32_t place = 5 + i * 2;
    Execution execution{.program = &programs.await, .cursors = {i}};
    execution.targets = {entry, ring, doorbell, completion};
    execution.expects = {{{place, 0, kBytes}, i + 1}};
    poster.executions.push_back(execution);
  };
  static const Program nothing = ProgramBuilder("prepare").build();
  Execution prepare{.program = &nothing};
  prepare.keepsBuffers = true;
  for (uint32_t i = 0; i < entries; ++i) prepare.fills.push_back({{6 + i * 2, 0, kBytes}, i + 1});
  poster.executions.push_back(prepare);
  for (uint32_t i = 0; i < entries; ++i) {
    scenario.areas.push_back({"place" + std::to_string(i), 0, kBytes});
    scenario.areas.push_back({"payload" + std::to_string(i), 0, kBytes});
    const Range place{5 + i * 2, 0, kBytes};
    const Range payload{6 + i * 2, 0, kBytes};
    Execution post{.program = &programs.post, .cursors = {i}};
    post.targets = {entry, ring, doorbell, completion};
    post.fills = {{entry, i + 1}};
    poster.executions.push_back(post);
    if (i + 1 >= inFlight) await(i + 1 - inFlight);

    const Tagged arrived{{1, uint64_t{i % slots} * kMailboxEntryBytes, kMailboxEntryBytes}, i + 1};
    Execution take{.program = &programs.take, .cursors = {i}};
    take.targets = {ring, work, doorbell, completion};
    take.lates = {{kAgentWork, arrived}};
    take.expects = {{work, i + 1}};
    Execution performing{.program = &perform};
    performing.targets = {place, payload};
    Execution complete{.program = &programs.complete, .cursors = {i}};
    complete.targets = take.targets;
    agent.executions.insert(agent.executions.end(), {take, performing, complete});
  }
  for (uint32_t i = entries + 1 - inFlight; i < entries; ++i) await(i);
  scenario.actors = {poster, agent};
  scenario.finals = {{doorbell, entries}, {completion, entries}};
  return scenario;
}

struct Setting {
  uint32_t slots;
  uint32_t entries;
  uint32_t inFlight;
};
const Setting kSettings[] = {{1, 3, 1}, {2, 3, 2}, {1, 3, 2}, {2, 4, 3}};

TEST(MailboxProtocol, IsRightAwakeAsleepAndPoisoned) {
  for (const Setting& setting : kSettings) {
    const MailboxPrograms programs = programsOf(setting.slots);
    Scenario scenario = scenarioOf(programs, setting.slots, setting.entries, setting.inFlight);
    ExplorerReport report = explore(scenario);
    EXPECT_TRUE(report.ok()) << setting.slots << " slots: " << report.toString();
    scenario.sleeping.emplace();
    report = explore(scenario);
    EXPECT_TRUE(report.ok()) << setting.slots << " slots, asleep: " << report.toString();
    scenario.sleeping.reset();
    scenario.poisoning = Poisoning::kUntilDrained;
    report = explore(scenario);
    EXPECT_TRUE(report.ok()) << setting.slots << " slots, poison: " << report.toString();
  }
}

TEST(MailboxProtocol, EveryMutantIsCaught) {
  for (const auto member : {&MailboxPrograms::post, &MailboxPrograms::await, &MailboxPrograms::take,
                            &MailboxPrograms::complete}) {
    const MailboxPrograms two = programsOf(2);
    for (const Mutant& wanted : mutantsOf(two.*member)) {
      bool isCaught = false;
      for (const Setting& setting : kSettings) {
        MailboxPrograms programs = programsOf(setting.slots);
        for (Mutant& mutant : mutantsOf(programs.*member)) {
          if (mutant.what != wanted.what) continue;
          programs.*member = std::move(mutant.program);
          const ExplorerReport report =
              explore(scenarioOf(programs, setting.slots, setting.entries, setting.inFlight));
          isCaught = isCaught || report.violation != Violation::kNone;
          EXPECT_NE(report.violation, Violation::kBadScenario) << report.what;
          break;
        }
      }
      EXPECT_TRUE(isCaught) << wanted.what;
    }
  }
}

}  // namespace
}  // namespace peerlane::explorer
