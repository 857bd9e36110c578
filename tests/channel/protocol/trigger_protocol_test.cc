// SPDX-License-Identifier: Apache-2.0
//
// The programs of triggered queues in every interleaving, of both emitters: right, released by
// poison, and every small mistake in them is found. Their numbers are constants, because a program
// is made for one commit; three rounds show what an old value would let pass.
#include "peerlane/channel/protocol/trigger_protocol.h"

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "explore/explorer.h"

namespace peerlane {
namespace {

using explorer::Execution;
using explorer::ExplorerReport;
using explorer::Poisoning;
using explorer::Range;
using explorer::Scenario;
using explorer::Violation;

constexpr uint32_t kBytes = 32;
constexpr uint32_t kRounds = 3;
constexpr uint32_t kMarks = 2;

enum class Traffic : uint8_t {
  kAnswered,  // a put and a signal; the peer's put and signal are the answer
  kOneWay,    // a put and a signal, each round to another place
  kGet
};

struct TriggerSetting {
  bool isDoorbell = false;
  Traffic traffic = Traffic::kAnswered;
  // One stream launches and another one waits; else one does all.
  bool isApart = false;
  // Mapped: a device stores totals where a thread of the CPU adds.
  bool isOfDevice = false;
  std::string name() const {
    static constexpr const char* kNames[] = {"answered", "one way", "get"};
    return std::string(isOfDevice ? "device, " : "") + (isDoorbell ? "doorbell, " : "mapped, ") +
           kNames[size_t(traffic)] + (isApart ? ", two streams" : ", one stream");
  }
  uint64_t operations() const { return traffic == Traffic::kGet && !isDoorbell ? 1 : 2; }
};

std::vector<TriggerSetting> allSettings() {
  std::vector<TriggerSetting> settings;
  for (const bool isApart : {false, true})
    for (const bool isDoorbell : {false, true})
      for (const Traffic traffic : {Traffic::kOneWay, Traffic::kGet, Traffic::kAnswered})
        settings.push_back({isDoorbell, traffic, isApart});
  for (const Traffic traffic : {Traffic::kOneWay, Traffic::kAnswered})
    settings.push_back({.traffic = traffic, .isOfDevice = true});
  return settings;
}

// Done to each program of the queues before it is run.
using Mistake = std::function<void(Program&)>;

enum MemoryTarget : TargetId { kHere = kTriggerFirstMemory, kThere };

Program emptyProgram(const char* name) {
  Program program = ProgramBuilder(name).build();
  declareTrigger(program);
  program.targets.push_back({.name = "here"});
  program.targets.push_back({.name = "there", .side = Side::kRemote});
  return program;
}

// One side's memory.
struct SideMemory {
  Range bell, count, passed, arrived, go;
  Range source, place;
};

class World {
 public:
  World(const TriggerSetting& setting, const Mistake& mistake)
      : setting_(setting), mistake_(mistake) {
    for (const int side : {0, 1}) {
      SideMemory& memory = memory_[side];
      memory.bell = area("bell", side, 8);
      memory.count = area("count", side, 8);
      memory.passed = area("passed", side, uint64_t{kMarks} * 8);
      memory.arrived = area("arrived", side, 8);
      memory.go = area("go", side, 8);
      memory.source = area("source", side, uint64_t{kBytes} * (kRounds + 1));
      memory.place = area("place", side, uint64_t{kBytes} * (kRounds + 1));
    }
    switch (setting.traffic) {
      case Traffic::kAnswered:
        addLauncher(0);
        addAnswerer();
        break;
      case Traffic::kOneWay:
        addLauncher(0);
        addReader();
        break;
      case Traffic::kGet: addLauncher(0); break;
    }
  }
  Scenario& scenario() { return scenario_; }

 private:
  Range area(const char* name, int side, uint64_t bytes) {
    scenario_.areas.push_back({name + std::to_string(side), side, bytes});
    return {static_cast<uint32_t>(scenario_.areas.size() - 1), 0, bytes};
  }
  size_t actor(const char* name, int side) {
    scenario_.actors.push_back({name + std::to_string(side), side, {}});
    return scenario_.actors.size() - 1;
  }
  static Range part(Range range, uint64_t index) {
    return {range.area, range.offset + index * kBytes, kBytes};
  }

  // --- What the users do ---
  Execution& run(size_t actor, Program program, int side) {
    const SideMemory& here = memory_[side];
    const SideMemory& there = memory_[1 - side];
    auto& executions = scenario_.actors[actor].executions;
    executions.push_back({.program = &programs_.emplace_back(std::move(program)),
                          .targets = {here.bell, here.count, here.passed, here.arrived,
                                      there.arrived, here.source, there.place},
                          .keepsBuffers = true});
    return executions.back();
  }
  void fill(size_t actor, int side, const Range& range, uint32_t message) {
    run(actor, emptyProgram("write"), side).fills = {{range, message}};
  }
  void tell(size_t actor, int side, uint64_t value) {
    Program program = emptyProgram("tell");
    program.ops = {{.code = OpCode::kStore,
                    .order = Order::kRelease,
                    .to = {.target = kHere},
                    .operand = {.delta = static_cast<int64_t>(value)}}};
    run(actor, std::move(program), side).targets[kHere] = memory_[side].go;
  }
  Execution& await(size_t actor, int side, const Place& word, uint64_t value) {
    Program program = emptyProgram("await");
    program.ops = {
        {.code = OpCode::kWait, .to = word, .operand = {.delta = static_cast<int64_t>(value)}}};
    return run(actor, std::move(program), side);
  }

  // --- The queue's programs ---
  // The put or get of one round.
  Op copyOf() const {
    const Place here{.target = kHere};
    const Place there{.target = kThere};
    const bool isGet = setting_.traffic == Traffic::kGet;
    return {.code = OpCode::kCopy,
            .to = isGet ? here : there,
            .from = isGet ? there : here,
            .bytes = kBytes};
  }
  void bindMemory(Execution& execution, int side, uint64_t round, uint64_t operation) const {
    if (setting_.traffic == Traffic::kGet) {
      execution.targets[kHere] = part(memory_[side].place, operation);
      execution.targets[kThere] = part(memory_[1 - side].source, round);
      return;
    }
    execution.targets[kHere] = part(memory_[side].source, 0);
    execution.targets[kThere] =
        part(memory_[1 - side].place, setting_.traffic == Traffic::kOneWay ? round : 0);
  }
  uint64_t lastOf(uint64_t round) const { return setting_.operations() * round; }

  void commit(size_t actor, int side, uint64_t round) {
    Program program = emptyProgram("commit");
    if (setting_.isDoorbell) {
      emitDoorbell(program, lastOf(round));
    } else {
      program.ops.push_back(copyOf());
      if (setting_.isOfDevice)
        emitSignalTotal(program, 0, round);
      else if (setting_.traffic != Traffic::kGet)
        emitSignal(program, 0, 1);
      emitMappedEnd(program, lastOf(round));
    }
    if (mistake_) mistake_(program);
    bindMemory(run(actor, std::move(program), side), side, round, 0);
  }
  Execution& peek(size_t actor, int side, uint64_t last, uint64_t arrivals, uint64_t round) {
    Program program = emptyProgram("peek");
    std::vector<TriggerArrival> awaited;
    if (arrivals != 0) awaited.push_back({.offset = 0, .value = arrivals});
    emitPeek(program, last, awaited, static_cast<uint32_t>(side), round);
    if (mistake_) mistake_(program);
    return run(actor, std::move(program), side);
  }
  Place passedOf(int side) const {
    return {.target = kTriggerPassed, .offset = static_cast<uint64_t>(side) * 8};
  }

  // What a link does for a rung entry. Not the queue's, so it makes no mistake.
  void addServer(int side) {
    const size_t server = actor("server", side);
    for (uint64_t number = 1; number <= lastOf(kRounds); ++number) {
      const uint64_t round = (number + 1) / 2;
      Program program = emptyProgram("serve");
      const Operand entry{.delta = static_cast<int64_t>(number)};
      program.ops = {{.code = OpCode::kWait, .to = {.target = kTriggerBell}, .operand = entry}};
      if (setting_.traffic == Traffic::kGet || number % 2 == 1)
        program.ops.push_back(copyOf());
      else
        program.ops.push_back({.code = OpCode::kAdd64,
                               .order = Order::kRelease,
                               .to = {.target = kTriggerSignals},
                               .operand = {.delta = 1}});
      program.ops.push_back({.code = OpCode::kStore,
                             .order = Order::kRelease,
                             .to = {.target = kTriggerCount},
                             .operand = entry});
      bindMemory(run(server, std::move(program), side), side, round, 1 - number % 2);
    }
  }

  // --- The sides ---
  std::vector<explorer::Tagged> resultsOf(uint32_t round) const {
    switch (setting_.traffic) {
      case Traffic::kAnswered: return {{part(memory_[0].place, 0), round}};
      case Traffic::kOneWay: return {};
      case Traffic::kGet: break;
    }
    std::vector<explorer::Tagged> results;
    for (uint64_t operation = 0; operation < setting_.operations(); ++operation)
      results.push_back({part(memory_[0].place, operation), round});
    return results;
  }
  // What a round sends, or all that there is to get.
  void produce(size_t actor, int side, uint32_t round) {
    if (setting_.traffic != Traffic::kGet)
      fill(actor, side, part(memory_[side].source, 0), round);
    else
      for (uint32_t got = 1; got <= kRounds && round == 1; ++got)
        fill(actor, side, part(memory_[1 - side].source, got), got);
  }
  uint64_t answersUntil(uint32_t round) const {
    return setting_.traffic == Traffic::kAnswered ? round : 0;
  }
  // Produces, launches, waits, and looks, in rounds.
  void addLauncher(int side) {
    if (setting_.isDoorbell) addServer(side);
    const size_t stream = actor("stream", side);
    if (setting_.isApart) return addLauncherApart(side, stream);
    for (uint32_t round = 1; round <= kRounds; ++round) {
      produce(stream, side, round);
      commit(stream, side, round);
      peek(stream, side, lastOf(round), answersUntil(round), round).expects = resultsOf(round);
    }
    produce(stream, side, explorer::kLastMessage);
  }
  // The user knows by the word that a peek stores.
  void addLauncherApart(int side, size_t stream) {
    const size_t user = actor("user", side);
    const size_t waiter = actor("waiter", side);
    for (uint32_t round = 1; round <= kRounds; ++round) {
      produce(user, side, round);
      tell(user, side, round);
      await(user, side, passedOf(side), round).expects = resultsOf(round);
      awaitGo(stream, side, round);
      commit(stream, side, round);
      peek(waiter, side, lastOf(round), answersUntil(round), round);
    }
    produce(user, side, explorer::kLastMessage);
  }
  void awaitGo(size_t actor, int side, uint64_t round) {
    await(actor, side, {.target = kHere}, round).targets[kHere] = memory_[side].go;
  }
  // Side 1 answers each message by one of its own.
  void addAnswerer() {
    if (setting_.isDoorbell) addServer(1);
    const Range place = part(memory_[1].place, 0);
    const size_t stream = actor("stream", 1);
    const size_t user = setting_.isApart ? actor("user", 1) : stream;
    const size_t waiter = setting_.isApart ? actor("waiter", 1) : stream;
    for (uint32_t round = 1; round <= kRounds; ++round) {
      peek(waiter, 1, lastOf(round - 1), round, round);
      await(user, 1, passedOf(1), round).expects = {{place, round}};
      produce(user, 1, round);
      if (setting_.isApart) {
        tell(user, 1, round);
        awaitGo(stream, 1, round);
      }
      commit(stream, 1, round);
    }
  }
  // Side 1 only waits for arrivals.
  void addReader() {
    const size_t reader = actor("reader", 1);
    for (uint32_t round = 1; round <= kRounds; ++round)
      peek(reader, 1, 0, round, round).expects = {{part(memory_[1].place, round), round}};
  }

  const TriggerSetting setting_;
  const Mistake mistake_;
  Scenario scenario_;
  SideMemory memory_[2];
  std::deque<Program> programs_;  // their addresses stay
};

ExplorerReport exploreSetting(const TriggerSetting& setting, const Mistake& mistake = {},
                              Poisoning poisoning = Poisoning::kNever) {
  World world(setting, mistake);
  world.scenario().poisoning = poisoning;
  return explorer::explore(world.scenario());
}

TEST(TriggerProtocol, IsRightInEveryInterleaving) {
  for (const TriggerSetting& setting : allSettings()) {
    const ExplorerReport report = exploreSetting(setting);
    EXPECT_TRUE(report.ok()) << setting.name() << ": " << report.toString();
    RecordProperty(setting.name(), static_cast<int>(report.states));
  }
}

TEST(TriggerProtocol, IsReleasedByPoison) {
  for (const TriggerSetting& setting : allSettings()) {
    const ExplorerReport report = exploreSetting(setting, {}, Poisoning::kUntilDrained);
    EXPECT_TRUE(report.ok()) << setting.name() << ": " << report.toString();
  }
}

// The program of a mapped queue stores the count by itself, over the poison, and the next wait
// hangs.
TEST(TriggerProtocol, NeedsPoisonUntilTheCommitWasPassed) {
  const ExplorerReport report =
      exploreSetting({.traffic = Traffic::kOneWay, .isApart = true}, {}, Poisoning::kOnce);
  EXPECT_EQ(report.violation, Violation::kDeadlock) << report.toString();
}

// --- Mutants ---

// The same op in every program of the queues.
struct Role {
  const char* name;
  OpCode code;
  TargetId target;
  // What may be wrong with it.
  bool mayBeRelaxed = false;
  bool mayBeLower = false;
  bool mayBeHigher = false;
};
constexpr Role kRoles[] = {
    {"bell", OpCode::kStore, kTriggerBell, true, true, true},
    {"copy", OpCode::kCopy, kNoTarget},
    {"signal", OpCode::kAdd64, kTriggerSignals, true},
    {"total", OpCode::kStore, kTriggerSignals, true, true, true},
    {"end", OpCode::kStore, kTriggerCount, true, true, true},
    {"wait for the count", OpCode::kWait, kTriggerCount, false, true},
    {"wait for an arrival", OpCode::kWait, kTriggerArrived, false, true},
    {"passed", OpCode::kStore, kTriggerPassed, false, true, true},
};

bool plays(const Op& op, const Role& role) {
  return op.code == role.code && (role.target == kNoTarget || op.to.target == role.target);
}

struct NamedMistake {
  std::string name;
  Mistake mistake;
};

std::vector<NamedMistake> mistakesOf(const Role& role) {
  std::vector<NamedMistake> mistakes;
  const auto add = [&](const char* how, void (*edit)(Op&)) {
    mistakes.push_back({std::string(role.name) + " " + how, [role, edit](Program& program) {
                          for (Op& op : program.ops)
                            if (plays(op, role)) edit(op);
                        }});
  };
  mistakes.push_back({std::string(role.name) + " left out", [role](Program& program) {
                        std::erase_if(program.ops, [&](const Op& op) { return plays(op, role); });
                      }});
  if (role.mayBeRelaxed) add("relaxed", [](Op& op) { op.order = Order::kRelaxed; });
  if (role.mayBeLower) add("- 1", [](Op& op) { --op.operand.delta; });
  if (role.mayBeHigher) add("+ 1", [](Op& op) { ++op.operand.delta; });
  return mistakes;
}

class TriggerMutation : public testing::TestWithParam<bool> {};

TEST_P(TriggerMutation, EveryMutantIsCaught) {
  const bool isDoorbell = GetParam();
  size_t mutants = 0;
  for (const Role& role : kRoles) {
    // The other emitter's.
    if (isDoorbell ? role.code == OpCode::kCopy || role.target == kTriggerSignals ||
                         (role.code == OpCode::kStore && role.target == kTriggerCount)
                   : role.target == kTriggerBell)
      continue;
    for (const NamedMistake& each : mistakesOf(role)) {
      std::string by;
      for (const TriggerSetting& setting : allSettings()) {
        if (setting.isDoorbell != isDoorbell) continue;
        const ExplorerReport report = exploreSetting(setting, each.mistake);
        EXPECT_NE(report.violation, Violation::kBadScenario) << report.what;
        if (report.violation == Violation::kNone) continue;
        by = std::string(violationName(report.violation)) + " (" + setting.name() + ")";
        break;
      }
      EXPECT_FALSE(by.empty()) << each.name;
      RecordProperty(each.name, by);
      ++mutants;
    }
  }
  EXPECT_GT(mutants, 8u);
}

INSTANTIATE_TEST_SUITE_P(Emitters, TriggerMutation, testing::Bool(),
                         [](const auto& test) { return test.param ? "Doorbell" : "Mapped"; });

}  // namespace
}  // namespace peerlane
