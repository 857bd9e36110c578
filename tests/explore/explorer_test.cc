// SPDX-License-Identifier: Apache-2.0
//
// What the explorer finds in programs that are wrong on purpose, and that it finds nothing in the
// same programs done right.
#include "explore/explorer.h"

#include <gtest/gtest.h>

#include "explore/explorer_mutants.h"

namespace peerlane::explorer {
namespace {

constexpr uint64_t kBytes = 32;

// One slot, two counters: the smallest protocol that can go wrong in every way.
enum SenderTarget : TargetId { kPayload, kSlot, kData, kCredit };
enum ReceiverTarget : TargetId { kBuffer, kInbox, kArrived, kTaken };

Operand cursor(int64_t delta) {
  return {.cursor = 0, .delta = delta};
}

struct SenderForm {
  bool waitsForCredit = true;
  Order order = Order::kRelease;
  bool fence = false;
  bool storesFirst = false;
};

Program senderOf(const SenderForm& form) {
  ProgramBuilder program("send");
  program.cursor(1);
  program.local("payload");
  program.remote("slot");
  program.remote("data");
  program.local("credit");
  if (form.waitsForCredit) program.wait({.target = kCredit}, cursor(0));
  if (form.storesFirst) program.store({.target = kData}, cursor(1), form.order);
  program.copy({.target = kSlot}, {.target = kPayload}, kBytes);
  if (form.fence) program.fence();
  if (!form.storesFirst) program.store({.target = kData}, cursor(1), form.order);
  return program.build();
}

struct ReceiverForm {
  Operand awaited = {.cursor = 0, .delta = 1};
  Order order = Order::kRelease;
  bool givesCredit = true;
};

Program receiverOf(const ReceiverForm& form) {
  ProgramBuilder program("receive");
  program.cursor(1);
  program.local("buffer");
  program.local("inbox");
  program.local("arrived");
  program.remote("taken");
  program.wait({.target = kArrived}, form.awaited)
      .copy({.target = kBuffer}, {.target = kInbox}, kBytes);
  if (form.givesCredit) program.store({.target = kTaken}, cursor(1), form.order);
  return program.build();
}

Scenario scenarioOf(const Program& sender, const Program& receiver, uint32_t messages = 3) {
  Scenario scenario;
  scenario.areas = {{"payload", 0, kBytes},
                    {"credit", 0, 8},
                    {"slot", 1, kBytes},
                    {"data", 1, 8},
                    {"buffer", 1, kBytes}};
  const Range payload{0, 0, kBytes};
  const Range credit{1, 0, 8};
  const Range slot{2, 0, kBytes};
  const Range data{3, 0, 8};
  const Range buffer{4, 0, kBytes};
  scenario.actors = {{"sender", 0, {}}, {"receiver", 1, {}}};
  for (uint32_t i = 0; i < messages; ++i) {
    Execution send{.program = &sender, .cursors = {i}};
    send.targets = {payload, slot, data, credit};
    send.fills = {{payload, i + 1}};
    scenario.actors[0].executions.push_back(send);
    Execution receive{.program = &receiver, .cursors = {i}};
    receive.targets = {buffer, slot, data, credit};
    receive.fills = {{buffer, 0}};
    receive.expects = {{buffer, i + 1}};
    scenario.actors[1].executions.push_back(receive);
  }
  return scenario;
}

ExplorerReport reportOf(const SenderForm& send, const ReceiverForm& receive) {
  const Program sender = senderOf(send);
  const Program receiver = receiverOf(receive);
  return explore(scenarioOf(sender, receiver));
}

TEST(Explorer, AcceptsWhatIsRight) {
  const ExplorerReport report = reportOf({}, {});
  EXPECT_TRUE(report.ok()) << report.toString();
  EXPECT_GT(report.states, 20u);
  EXPECT_TRUE(report.trace.empty());
}

TEST(Explorer, AcceptsAFenceInsteadOfARelease) {
  const ExplorerReport report = reportOf({.order = Order::kRelaxed, .fence = true}, {});
  EXPECT_TRUE(report.ok()) << report.toString();
}

TEST(Explorer, FindsAStoreThatPassesItsData) {
  const ExplorerReport report = reportOf({.order = Order::kRelaxed}, {});
  EXPECT_EQ(report.violation, Violation::kReadBeforeWrite) << report.toString();
  // The shortest way: the word, and the receiver reads. A trace names actors, programs and ops.
  const std::string text = report.toString();
  EXPECT_NE(text.find("sender: send(0) store peer.data = cursor0+1 (relaxed) -> visible"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("receiver: receive(0) wait  arrived >= cursor0+1 -> passed"),
            std::string::npos)
      << text;
  EXPECT_NE(report.what.find("buffer"), std::string::npos) << report.what;
}

TEST(Explorer, FindsAReleaseThatComesTooEarly) {
  EXPECT_EQ(reportOf({.storesFirst = true}, {}).violation, Violation::kReadBeforeWrite);
}

// A device fence orders one device's own view only.
TEST(Explorer, FindsAFenceOfTooSmallScope) {
  Program sender = senderOf({.order = Order::kRelaxed, .fence = true});
  for (Op& op : sender.ops) op.scope = Scope::kDevice;
  const Program receiver = receiverOf({});
  EXPECT_EQ(explore(scenarioOf(sender, receiver)).violation, Violation::kReadBeforeWrite);
}

TEST(Explorer, FindsAnOverwriteBeforeTheReceiverDrained) {
  EXPECT_EQ(reportOf({.waitsForCredit = false}, {}).violation, Violation::kOverwriteBeforeDrain);
}

// The credit may not pass the reads before it either.
TEST(Explorer, FindsACreditThatPassesItsReads) {
  EXPECT_EQ(reportOf({}, {.order = Order::kRelaxed}).violation, Violation::kOverwriteBeforeDrain);
}

TEST(Explorer, FindsADeadlockAndSaysWhoWaitsForWhat) {
  const ExplorerReport report = reportOf({}, {.givesCredit = false});
  EXPECT_EQ(report.violation, Violation::kDeadlock) << report.toString();
  EXPECT_NE(report.what.find("the word credit is 0, awaited is 1"), std::string::npos)
      << report.what;
}

// With a baked-in operand the second replay passes at once. The user keeps its buffer as it was, so
// that what lies there is the first message.
TEST(Explorer, FindsAReplayThatPassesOnAnOldValue) {
  const Program sender = senderOf({});
  const Program receiver = receiverOf({.awaited = {.delta = 1}});
  const ExplorerReport report = explore(scenarioOf(sender, receiver));
  EXPECT_EQ(report.violation, Violation::kStaleReplay) << report.toString();
  EXPECT_NE(report.what.find("message 1 instead of message 2"), std::string::npos) << report.what;
}

// The receiver pulls from the user's buffer; a sender that ends before it was told so lets the user
// write there.
TEST(Explorer, FindsASourceThatIsRefilledTooEarly) {
  for (const bool waits : {true, false}) {
    ProgramBuilder send("expose");
    send.cursor(1);
    send.local("payload");
    send.remote("ready");
    send.local("done");
    send.store({.target = 1}, cursor(1), Order::kRelease);
    if (waits) send.wait({.target = 2}, cursor(1));
    ProgramBuilder pull("pull");
    pull.cursor(1);
    pull.local("buffer");
    pull.remote("payload");
    pull.local("ready");
    pull.remote("done");
    pull.wait({.target = 2}, cursor(1))
        .copy({.target = 0}, {.target = 1}, kBytes)
        .store({.target = 3}, cursor(1), Order::kRelease);
    const Program sender = send.build();
    const Program receiver = pull.build();
    Scenario scenario;
    scenario.areas = {
        {"payload", 0, kBytes}, {"done", 0, 8}, {"ready", 1, 8}, {"buffer", 1, kBytes}};
    const Range payload{0, 0, kBytes};
    const Range buffer{3, 0, kBytes};
    scenario.actors = {{"sender", 0, {}}, {"receiver", 1, {}}};
    // One message is enough: the user writes its buffer again after the last one, too.
    scenario.actors[0].executions = {{.program = &sender,
                                      .cursors = {0},
                                      .targets = {payload, {2, 0, 8}, {1, 0, 8}},
                                      .fills = {{payload, 1}}}};
    scenario.actors[1].executions = {{.program = &receiver,
                                      .cursors = {0},
                                      .targets = {buffer, payload, {2, 0, 8}, {1, 0, 8}},
                                      .fills = {{buffer, 0}},
                                      .expects = {{buffer, 1}}}};
    EXPECT_EQ(explore(scenario).violation,
              waits ? Violation::kNone : Violation::kOverwriteBeforeDrain);
  }
}

// A NIC's way to say that something is there: a word of 32 bits that goes on and back. `until`
// releases the reader when the word has become 0 again.
struct WordForm {
  Width width = Width::k32;
  Compare compare = Compare::kNor;
  uint32_t before = 0;
  uint32_t after = 0;
  int64_t until = 0;
};

ExplorerReport wordReport(const WordForm& form) {
  ProgramBuilder send("send");
  send.local("payload");
  send.remote("slot");
  send.remote("word");
  send.copy({.target = 1}, {.target = 0}, kBytes)
      .store({.target = 2}, {.delta = form.after}, Order::kRelease, form.width);
  ProgramBuilder receive("receive");
  receive.local("buffer");
  receive.local("slot");
  receive.local("word");
  receive.local("go");
  receive.store({.target = 2}, {.delta = form.before}, Order::kRelaxed, form.width)
      .store({.target = 3}, {.delta = 1}, Order::kRelease)
      .wait({.target = 2}, {.delta = form.until}, form.compare, form.width)
      .copy({.target = 0}, {.target = 1}, kBytes);
  ProgramBuilder begin("begin");
  begin.remote("go");
  begin.wait({.target = 0}, {.delta = 1});
  const Program sender = send.build();
  const Program receiver = receive.build();
  const Program beginning = begin.build();
  Scenario scenario;
  scenario.areas = {{"payload", 0, kBytes},
                    {"slot", 1, kBytes},
                    {"word", 1, 8},
                    {"go", 1, 8},
                    {"buffer", 1, kBytes}};
  const Range payload{0, 0, kBytes};
  const Range slot{1, 0, kBytes};
  const Range word{2, 0, 8};
  const Range go{3, 0, 8};
  const Range buffer{4, 0, kBytes};
  scenario.actors = {{"sender", 0, {}}, {"receiver", 1, {}}};
  scenario.actors[0].executions = {
      {.program = &beginning, .targets = {go}},
      {.program = &sender, .targets = {payload, slot, word}, .fills = {{payload, 1}}}};
  scenario.actors[1].executions = {{.program = &receiver,
                                    .targets = {buffer, slot, word, go},
                                    .fills = {{buffer, 0}},
                                    .expects = {{buffer, 1}}}};
  return explore(scenario);
}

// The word's other half must not satisfy a wait for this one.
TEST(Explorer, ComparesWordsOf32BitsAlone) {
  constexpr uint32_t kOwner = 0x80000000;
  constexpr int64_t kOthers = 0x7fffffff;
  for (const WordForm& form :
       {WordForm{.before = kOwner, .after = 0, .until = kOthers},
        // Around the end of the numbers: 0xfffffffe is before 2, which a poison would pass as well.
        WordForm{.compare = Compare::kGreaterEqual, .before = 0xfffffffe, .after = 2, .until = 2},
        WordForm{.compare = Compare::kAnd, .before = 1, .after = kOwner, .until = kOwner},
        WordForm{.compare = Compare::kEqual, .before = kOwner, .after = 7, .until = 7}}) {
    const ExplorerReport report = wordReport(form);
    EXPECT_TRUE(report.ok()) << report.toString();
  }
  // Bits that were free from the beginning.
  const ExplorerReport early = wordReport({.before = 0, .after = kOwner, .until = kOthers});
  EXPECT_EQ(early.violation, Violation::kReadBeforeWrite) << early.toString();
  // Nothing of 32 bits is left: for ever.
  const ExplorerReport never = wordReport({.before = kOwner, .after = 0, .until = 0xffffffff});
  EXPECT_EQ(never.violation, Violation::kDeadlock) << never.toString();
}

// In 64 bits the upper half counts, too: such a wait passes at once.
TEST(Explorer, ComparesWordsOf64Bits) {
  const ExplorerReport report =
      wordReport({.width = Width::k64, .before = 0, .after = 0xffff, .until = 0xffffffff});
  EXPECT_EQ(report.violation, Violation::kReadBeforeWrite) << report.toString();
}

// Words of 32 bits are no counters: they go back, and no poison falls on them.
TEST(Explorer, LetsWordsOf32BitsGoBack) {
  const WordForm form{.compare = Compare::kEqual, .before = 7, .after = 5, .until = 5};
  const ExplorerReport report = wordReport(form);
  EXPECT_TRUE(report.ok()) << report.toString();
  WordForm counter = form;
  counter.width = Width::k64;
  EXPECT_EQ(wordReport(counter).violation, Violation::kCounterWentBack);
}

// Two producers that read, add and write instead of adding at once lose a signal; a counter that is
// set by two sides goes back.
TEST(Explorer, FindsLostSignalsAndCountersThatGoBack) {
  ProgramBuilder add("add");
  add.remote("counter");
  add.add64({.target = 0}, {.delta = 1}, Order::kRelease);
  ProgramBuilder set("set");
  set.cursor(1);
  set.remote("counter");
  set.store({.target = 0}, cursor(1), Order::kRelease);
  const Program adding = add.build();
  const Program setting = set.build();
  Scenario scenario;
  scenario.areas = {{"counter", 1, 8}};
  scenario.finals = {{{0, 0, 8}, 2}};
  const auto actors = [&](const Program& program, uint64_t second) {
    return std::vector<Actor>{
        {"one", 0, {{.program = &program, .cursors = {0}, .targets = {{0, 0, 8}}}}},
        {"two", 0, {{.program = &program, .cursors = {second}, .targets = {{0, 0, 8}}}}}};
  };
  scenario.actors = actors(adding, 0);
  EXPECT_TRUE(explore(scenario).ok());
  scenario.actors = actors(setting, 0);
  EXPECT_EQ(explore(scenario).violation, Violation::kLostSignal);
  scenario.actors = actors(setting, 1);
  EXPECT_EQ(explore(scenario).violation, Violation::kCounterWentBack);
}

TEST(Explorer, FindsALateTargetBoundBeforeItsSourceCame) {
  const Program sender = senderOf({});
  Program receiver = receiverOf({});
  Scenario scenario = scenarioOf(sender, receiver);
  for (uint32_t i = 0; i < 3; ++i)
    scenario.actors[1].executions[i].lates = {{kBuffer, {{2, 0, kBytes}, i + 1}}};
  EXPECT_TRUE(explore(scenario).ok());
  receiver.ops.erase(receiver.ops.begin());
  const ExplorerReport report = explore(scenario);
  EXPECT_EQ(report.violation, Violation::kReadBeforeWrite);
  EXPECT_NE(report.what.find("binds buffer"), std::string::npos) << report.what;
}

TEST(Explorer, RefusesScenariosThatDoNotFit) {
  const Program sender = senderOf({});
  const Program receiver = receiverOf({});
  Scenario scenario = scenarioOf(sender, receiver);
  scenario.areas[2].bytes = kBytes - 1;
  const ExplorerReport report = explore(scenario);
  EXPECT_EQ(report.violation, Violation::kBadScenario);
  EXPECT_NE(report.what.find("bytes 16 to 32 do not lie"), std::string::npos) << report.what;
}

TEST(Explorer, SaysWhenItDidNotSeeAll) {
  const Program sender = senderOf({});
  const Program receiver = receiverOf({});
  Scenario scenario = scenarioOf(sender, receiver);
  scenario.maxStates = 10;
  const ExplorerReport report = explore(scenario);
  EXPECT_FALSE(report.complete);
  EXPECT_FALSE(report.ok());
}

// --- Sleeping ---

ExplorerReport sleepingReport(const WakeRule& rule) {
  const Program sender = senderOf({});
  const Program receiver = receiverOf({});
  Scenario scenario = scenarioOf(sender, receiver);
  scenario.sleeping = rule;
  return explore(scenario);
}

TEST(ExplorerWakeRule, LosesNoWakeUp) {
  for (const bool onceASleep : {true, false}) {
    const ExplorerReport report = sleepingReport({.onceASleep = onceASleep});
    EXPECT_TRUE(report.ok()) << report.toString();
  }
}

TEST(ExplorerWakeRule, EveryPartIsNeeded) {
  for (const WakeRule& rule : {WakeRule{.announceFence = false}, WakeRule{.secondLook = false},
                               WakeRule{.producerFence = false}, WakeRule{.producerLooks = false},
                               WakeRule{.sleepsAreCounted = false}}) {
    const ExplorerReport report = sleepingReport(rule);
    EXPECT_EQ(report.violation, Violation::kDeadlock) << report.toString();
    EXPECT_NE(report.what.find("(asleep)"), std::string::npos) << report.what;
  }
}

// Two sleepers of one side, woken by one event that whoever comes first consumes.
TEST(ExplorerWakeRule, SleepersNeedEventsOfTheirOwn) {
  const Program sender = senderOf({});
  const Program receiver = receiverOf({});
  for (const bool ownEvents : {true, false}) {
    // Two lanes of one message each: side 1 has a receiver per lane.
    Scenario scenario = scenarioOf(sender, receiver, 1);
    Scenario other = scenarioOf(sender, receiver, 1);
    const uint32_t shift = static_cast<uint32_t>(scenario.areas.size());
    scenario.areas.insert(scenario.areas.end(), other.areas.begin(), other.areas.end());
    for (Actor& actor : other.actors) {
      actor.name += "2";
      for (Execution& execution : actor.executions) {
        for (Range& target : execution.targets) target.area += shift;
        for (Tagged& fill : execution.fills) fill.range.area += shift;
        for (Tagged& expect : execution.expects) expect.range.area += shift;
      }
      scenario.actors.push_back(actor);
    }
    scenario.sleeping = WakeRule{.ownEvents = ownEvents};
    EXPECT_EQ(explore(scenario).violation, ownEvents ? Violation::kNone : Violation::kDeadlock);
  }
}

// --- Poison ---

ExplorerReport poisonReport(Poisoning poisoning, const ReceiverForm& form, bool sleeping = false) {
  const Program sender = senderOf({});
  const Program receiver = receiverOf(form);
  Scenario scenario = scenarioOf(sender, receiver);
  scenario.poisoning = poisoning;
  if (sleeping) scenario.sleeping.emplace();
  return explore(scenario);
}

TEST(ExplorerPoison, ReleasesEveryWait) {
  EXPECT_TRUE(poisonReport(Poisoning::kUntilDrained, {}).ok());
  EXPECT_TRUE(poisonReport(Poisoning::kUntilDrained, {}, true).ok());
  // Even where the peer will never answer.
  EXPECT_TRUE(poisonReport(Poisoning::kUntilDrained, {.givesCredit = false}).ok());
}

// A store that was on its way overwrites the poison, and the next wait hangs.
TEST(ExplorerPoison, MustBeAssertedUntilAllIsDrained) {
  const ExplorerReport report = poisonReport(Poisoning::kOnce, {});
  EXPECT_EQ(report.violation, Violation::kDeadlock) << report.toString();
  EXPECT_NE(report.toString().find("poison falls"), std::string::npos);
}

// Poison must not make an execution that did not meet it wrong, and must not hide mistakes.
TEST(ExplorerPoison, HidesNoMistake) {
  EXPECT_EQ(poisonReport(Poisoning::kUntilDrained, {.order = Order::kRelaxed}).violation,
            Violation::kOverwriteBeforeDrain);
}

// --- Mutants ---

TEST(ExplorerMutants, AreAllDifferentAndNamed) {
  const Program sender = senderOf({});
  const std::vector<Mutant> mutants = mutantsOf(sender);
  // wait: left out, constant, - 1; copy: left out; store: left out, relaxed, constant, - 1, + 1.
  ASSERT_EQ(mutants.size(), 9u);
  for (size_t i = 0; i < mutants.size(); ++i) {
    EXPECT_NE(mutants[i].what.find("send op "), std::string::npos);
    EXPECT_NE(mutants[i].program.toString(), sender.toString()) << mutants[i].what;
    for (size_t j = 0; j < i; ++j) EXPECT_NE(mutants[i].what, mutants[j].what);
  }
}

TEST(ExplorerMutants, OfASmallProtocolAreAllCaught) {
  const Program sender = senderOf({});
  const Program receiver = receiverOf({});
  for (const Mutant& mutant : mutantsOf(sender))
    EXPECT_NE(explore(scenarioOf(mutant.program, receiver)).violation, Violation::kNone)
        << mutant.what;
  for (const Mutant& mutant : mutantsOf(receiver))
    EXPECT_NE(explore(scenarioOf(sender, mutant.program)).violation, Violation::kNone)
        << mutant.what;
}

// An op that does nothing shows: the mutant without it survives.
TEST(ExplorerMutants, ShowWhatIsSuperfluous) {
  const Program sender = senderOf({.fence = true});
  const Program receiver = receiverOf({});
  std::vector<std::string> survivors;
  for (const Mutant& mutant : mutantsOf(sender))
    if (explore(scenarioOf(mutant.program, receiver)).ok()) survivors.push_back(mutant.what);
  EXPECT_EQ(survivors, (std::vector<std::string>{"send op 2 left out", "send op 3 relaxed"}));
}

}  // namespace
}  // namespace peerlane::explorer
