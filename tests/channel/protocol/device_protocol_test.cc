// SPDX-License-Identifier: Apache-2.0
//
// The protocols of streams in every interleaving: right, while waiters sleep, released by poison,
// as groups post them; and every small mistake in them is found.
#include "peerlane/channel/protocol/device_protocol.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "explore/explorer_mutants.h"
#include "peerlane/channel/protocol/device_get_protocol.h"
#include "peerlane/channel/protocol/device_list_protocol.h"
#include "tests/channel/protocol/protocols_scenario.h"

namespace peerlane {
namespace {

using explorer::Execution;
using explorer::ExplorerReport;
using explorer::Mutant;
using explorer::Poisoning;
using explorer::Range;
using explorer::Scenario;
using explorer::Violation;

enum StreamProgram : size_t {
  kEagerSend,
  kEagerRecv,
  kPutSend,
  kPutHead,
  kPutTail,
  kGetHead,
  kGetTail,
  kGetRecv,
  kListSend,
  kListHead,
  kPrograms
};
using StreamSet = std::array<Program, kPrograms>;

constexpr uint32_t kBytes = 64;
constexpr uint32_t kEagerBytes = 2 * kPacketPayloadBytes;  // two pieces, as of every copy

StreamSet shippedSet(uint32_t slots) {
  const StreamShape shape{slots, kEagerBytes};
  StreamSet set{
      streamEagerSend(shape),         streamEagerRecv(shape), streamPutSend(shape),
      streamPutHead(shape),           streamPutTail(shape),   streamGetHead(shape),
      streamGetTail(shape),           streamGetRecv(shape),   streamListSend({slots, kBytes}),
      streamListHead({slots, kBytes})};
  set[kPutSend].ops[PutSendOps::kCopy].bytes = kBytes;  // patched with every call otherwise
  set[kGetRecv].ops[GetRecvOps::kCopy].bytes = kBytes;
  set[kListSend].ops[ListSendOps::kCopy].bytes = kBytes;
  set[kListHead].ops[ListHeadOps::kCopy].bytes = kBytes;
  return set;
}

bool isConstant(const Op& op) {
  return op.code == OpCode::kStore && op.order == Order::kRelaxed && op.operand.cursor == kNoCursor;
}

// The word that the other side compares with its own length, behind the first wait; none where
// nothing is compared.
Place lengthOf(size_t program) {
  switch (program) {
    case kPutSend: return {.target = PutSendOps::kPosted, .offset = DeviceArea::kPostedBytesAt};
    case kPutTail: return {.target = PutTailOps::kDone, .offset = DeviceArea::kBytesAt};
    case kGetRecv: return {.target = GetRecvOps::kOffered, .offset = DeviceArea::kBytesAt};
    case kListSend: return {.target = ListSendOps::kPosted, .offset = DeviceArea::kShapeAt};
    default: return {};
  }
}

// Behind a program's own targets.
TargetId constantsOf(const Program& explorable) {
  return static_cast<TargetId>(explorable.targets.size() - 2);
}

// To the explorer every stored word is a counter, and it follows bytes, not numbers. Words that say
// something about a message (length, region, offset) are constants of that message, so a relaxed
// store of one is a copy from a place that holds them, and reading one is a copy to a place of
// one's own: copies and relaxed stores are ordered alike by waits, fences and releases. One byte
// stands for the word, because a word is never seen in part and a longer copy is.
Program explorable(Program program, size_t which) {
  const auto constants = static_cast<TargetId>(program.targets.size());
  const auto seen = static_cast<TargetId>(constants + 1);
  program.targets.push_back({.name = "constants"});
  program.targets.push_back({.name = "seen"});
  const auto word = [](const Place& to, const Place& from) {
    return Op{.code = OpCode::kCopy, .to = to, .from = from, .bytes = 1};
  };
  for (Op& op :
       program.ops)  // what is accepted is a number, also in a mutant that forgot its cursor
    if (which != kGetRecv && isConstant(op))
      op = word(op.to, {.target = constants, .offset = op.to.offset});
  if (const Place length = lengthOf(which); length.target != kNoTarget) {
    // A mutant may have lost its first wait.
    const bool waits = program.ops.front().code == OpCode::kWait;
    program.ops.insert(program.ops.begin() + (waits ? 1 : 0), word({.target = seen}, length));
  }
  // What was accepted is looked at and found, or else it would be a fault.
  if (which == kGetTail)
    program.ops.push_back({.code = OpCode::kWait,
                           .to = {.target = GetTailOps::kTaken, .offset = DeviceArea::kAcceptedAt},
                           .operand = {.cursor = 0, .delta = 1}});
  return program;
}

StreamSet explorable(StreamSet set) {
  for (size_t i = 0; i < set.size(); ++i) set[i] = explorable(std::move(set[i]), i);
  return set;
}

// --- Scenarios ---

struct StreamSetting {
  uint32_t slots = 1;
  uint32_t senders = 1;  // streams of that side
  uint32_t receivers = 1;
  std::string messages;  // 'e' eager, 'p' put, 'g' get, 'l' list
  std::string name() const {
    return messages + ", " + std::to_string(slots) + " slots, " + std::to_string(senders) +
           " senders, " + std::to_string(receivers) + " receivers";
  }
};

// By message.
struct Direction {
  std::vector<std::vector<Execution>> sendHeads;  // of gets
  std::vector<std::vector<Execution>> sends;      // of others
  std::vector<std::vector<Execution>> sendTails;  // of gets
  std::vector<std::vector<Execution>> heads;      // of puts and lists
  std::vector<Execution> receives;
};

Range area(Scenario& scenario, const std::string& name, int side, uint64_t bytes) {
  scenario.areas.push_back({name, side, bytes});
  return {static_cast<uint32_t>(scenario.areas.size() - 1), 0, bytes};
}

Range part(const Range& whole, uint64_t offset, uint64_t bytes) {
  return {whole.area, whole.offset + offset, bytes};
}

// Each kind is counted by itself.
uint32_t numberOf(const std::string& messages, uint32_t index) {
  return static_cast<uint32_t>(
      std::count(messages.begin(), messages.begin() + index, messages[index]));
}

// `set` is explorable and outlives the scenario; so many buffers take turns at either side.
Direction addDirection(Scenario& scenario, const StreamSet& set, const StreamSetting& setting,
                       int near, size_t payloadCount, size_t bufferCount) {
  const int far = 1 - near;
  const uint64_t words = uint64_t{setting.slots} * DeviceArea::kWordStrideBytes;
  const uint32_t stride = set[kEagerSend].targets[EagerSendOps::kInbox].strideBytes;
  const Range credits = area(scenario, "credits", near, words);
  const Range posted = area(scenario, "posted", near, words);
  const Range done = area(scenario, "done", far, words);
  const Range free = area(scenario, "free", far, words);
  const Range inbox = area(scenario, "inbox", far, uint64_t{setting.slots} * stride);
  const Range offered = area(scenario, "offered", far, words);
  const Range taken = area(scenario, "taken", near, words);
  const Range listPosted = area(scenario, "listPosted", near, words);
  const Range listDone = area(scenario, "listDone", far, words);
  const Range listFree = area(scenario, "listFree", far, words);
  const Range list = area(scenario, "list", near, uint64_t{setting.slots} * kBytes);
  std::vector<Range> payloads;
  std::vector<Range> buffers;
  for (size_t i = 0; i < payloadCount; ++i)
    payloads.push_back(area(scenario, "payload" + std::to_string(i), near, kBytes));
  for (size_t i = 0; i < bufferCount; ++i)
    buffers.push_back(area(scenario, "buffer" + std::to_string(i), far, kBytes));

  Direction direction;
  for (uint32_t i = 0; i < setting.messages.size(); ++i) {
    const uint32_t message = i + 1;
    const bool eager = setting.messages[i] == 'e';
    const uint64_t bytes = eager ? kEagerBytes : kBytes;
    const Range payload = part(payloads[i % payloads.size()], 0, bytes);
    const Range buffer = part(buffers[i % buffers.size()], 0, bytes);
    const uint32_t number = numberOf(setting.messages, i);
    const auto make = [&](StreamProgram which, int side, std::vector<Range> targets) {
      const std::string suffix = std::to_string(which) + "." + std::to_string(i);
      Execution execution{
          .program = &set[which], .cursors = {number}, .targets = std::move(targets)};
      const Range constants =
          area(scenario, "constants" + suffix, side, DeviceArea::kWordStrideBytes);
      const Range seen = area(scenario, "seen" + suffix, side, 1);
      execution.targets.insert(execution.targets.end(), {constants, seen});
      for (const Op& op : set[which].ops)
        if (op.code == OpCode::kCopy && op.from.target == constantsOf(set[which]))
          execution.fills.push_back({part(constants, op.from.offset, 1), message});
      if (lengthOf(which).target != kNoTarget) execution.expects.push_back({seen, message});
      return execution;
    };
    const bool get = setting.messages[i] == 'g', isList = setting.messages[i] == 'l';
    const uint64_t slot = uint64_t{number % setting.slots} * DeviceArea::kWordStrideBytes;
    const auto named = [&](Execution& by, TargetId target, const Range& ring,
                           std::initializer_list<uint32_t> at) {
      for (const uint32_t word : at)
        by.lates.push_back({target, {part(ring, slot + word, 1), message}});
    };
    direction.sendHeads.emplace_back();
    direction.sends.emplace_back();
    direction.sendTails.emplace_back();
    if (get) {
      // The payload is in use until the tail has ended: what is filled next stands behind that.
      Execution head = make(kGetHead, near, {offered, taken});
      head.fills.push_back({payload, message});
      head.keepsBuffers = true;
      direction.sendHeads.back().push_back(head);
      direction.sendTails.back().push_back(make(kGetTail, near, {taken}));
    } else {
      Execution send = eager ? make(kEagerSend, near, {payload, inbox, credits})
                       : isList
                           ? make(kListSend, near, {payload, buffer, list, listPosted, listDone})
                           : make(kPutSend, near, {payload, buffer, posted, done});
      send.fills.push_back({payload, message});
      if (isList) {
        // Every byte of the places is looked at, and how many regions they name.
        const Range places = part(list, uint64_t{number % setting.slots} * kBytes, kBytes);
        send.lates.push_back({ListSendOps::kBuffer, {places, message}});
        named(send, ListSendOps::kBuffer, listPosted, {DeviceArea::kRegionsAt});
      } else if (!eager)
        named(send, PutSendOps::kBuffer, posted,
              {DeviceArea::kAllocationAt, DeviceArea::kGenerationAt, DeviceArea::kOffsetAt});
      direction.sends.back().push_back(send);
    }

    direction.heads.emplace_back();
    if (!eager && !get) {
      const Range places = area(scenario, "places" + std::to_string(i), far, kBytes);
      Execution head = isList ? make(kListHead, far, {places, list, listPosted, listFree})
                              : make(kPutHead, far, {posted, free});
      head.fills.push_back({buffer, 0});
      if (isList) head.fills.push_back({places, message});
      direction.heads.back().push_back(head);
    }
    Execution receive = eager    ? make(kEagerRecv, far, {buffer, inbox, credits})
                        : get    ? make(kGetRecv, far, {buffer, payload, offered, taken})
                        : isList ? make(kPutTail, far, {listDone, listFree})
                                 : make(kPutTail, far, {done, free});
    if (eager || get) receive.fills.push_back({buffer, 0});
    if (get)
      named(receive, GetRecvOps::kPayload, offered,
            {DeviceArea::kOfferedAllocationAt, DeviceArea::kOfferedGenerationAt,
             DeviceArea::kOfferedOffsetAt});
    receive.expects.push_back({buffer, message});
    direction.receives.push_back(receive);
  }
  // The last message of its kind in each slot is what the slot's word ends with.
  for (const char kind : {'e', 'p', 'g', 'l'}) {
    const auto count =
        static_cast<uint32_t>(std::count(setting.messages.begin(), setting.messages.end(), kind));
    for (uint32_t i = count < setting.slots ? 0 : count - setting.slots; i < count; ++i)
      scenario.finals.push_back(
          {part(kind == 'e'   ? credits
                : kind == 'p' ? free
                : kind == 'l' ? listFree
                              : taken,
                uint64_t{i % setting.slots} * DeviceArea::kWordStrideBytes, 8),
           i + 1});
  }
  return direction;
}

void append(std::vector<Execution>& to, const std::vector<Execution>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

// One direction; message m belongs to stream m mod streams at either side.
Scenario oneWay(const StreamSet& set, const StreamSetting& setting) {
  Scenario scenario;
  const Direction direction =
      addDirection(scenario, set, setting, 0, setting.senders, setting.receivers);
  for (uint32_t s = 0; s < setting.senders; ++s) {
    explorer::Actor sender{"sender" + std::to_string(s), 0, {}};
    for (size_t i = s; i < direction.sends.size(); i += setting.senders)
      for (const auto* part : {&direction.sendHeads, &direction.sends, &direction.sendTails})
        append(sender.executions, (*part)[i]);
    scenario.actors.push_back(std::move(sender));
  }
  for (uint32_t r = 0; r < setting.receivers; ++r) {
    explorer::Actor receiver{"receiver" + std::to_string(r), 1, {}};
    for (size_t i = r; i < direction.receives.size(); i += setting.receivers) {
      append(receiver.executions, direction.heads[i]);
      receiver.executions.push_back(direction.receives[i]);
    }
    scenario.actors.push_back(std::move(receiver));
  }
  return scenario;
}

// Both directions, posted by each side in groups of at most as many messages as there are slots.
Scenario groups(const StreamSet& set, const StreamSetting& setting) {
  Scenario scenario;
  const size_t count = setting.messages.size();
  const Direction there = addDirection(scenario, set, setting, 0, count, count);
  const Direction back = addDirection(scenario, set, setting, 1, count, count);
  explorer::Actor near{"near", 0, {}};
  explorer::Actor far{"far", 1, {}};
  const auto post = [&](explorer::Actor& actor, const Direction& out, const Direction& in) {
    for (size_t first = 0; first < count; first += setting.slots) {
      const size_t end = std::min<size_t>(first + setting.slots, count);
      for (size_t i = first; i < end; ++i) append(actor.executions, in.heads[i]);
      for (size_t i = first; i < end; ++i) append(actor.executions, out.sendHeads[i]);
      for (size_t i = first; i < end; ++i) append(actor.executions, out.sends[i]);
      for (size_t i = first; i < end; ++i) actor.executions.push_back(in.receives[i]);
      for (size_t i = first; i < end; ++i) append(actor.executions, out.sendTails[i]);
    }
  };
  post(near, there, back);
  post(far, back, there);
  scenario.actors = {near, far};
  return scenario;
}

// With at most so many streams at a side, but for long orders, which one stream each posts.
std::vector<StreamSetting> settingsOf(const std::vector<std::string>& orders, uint32_t streams) {
  std::vector<StreamSetting> settings;
  for (const std::string& messages : orders)
    for (const uint32_t slots : {1u, 2u}) {
      const uint32_t most = messages.size() <= 3 ? streams : 1;
      settings.push_back({slots, 1, 1, messages});
      if (most < 2) continue;
      settings.push_back({slots, 1, 2, messages});
      settings.push_back({slots, 2, 1, messages});
      settings.push_back({slots, 2, 2, messages});
      if (most < 3) continue;
      // Two streams and two slots go in step; three do not.
      settings.push_back({slots, 1, 3, messages});
      // A sender of gets that waits for the end of one cannot be ahead with the next.
      if (messages == "ggg") settings.push_back({slots, 3, 2, messages});
    }
  return settings;
}

std::string orderName(const testing::TestParamInfo<std::string>& test) {
  return test.param;
}

// --- Explored ---

using Orders = std::vector<std::string>;

class DeviceProtocolExplored : public testing::TestWithParam<std::string> {
 protected:
  void exploreAll(uint32_t streams, const std::function<void(Scenario&)>& change) {
    uint64_t states = 0;
    for (const StreamSetting& setting : settingsOf({GetParam()}, streams)) {
      const StreamSet shipped = shippedSet(setting.slots);
      for (const Program& program : shipped) ASSERT_TRUE(program.check()) << program.toString();
      const StreamSet set = explorable(shipped);
      Scenario scenario = oneWay(set, setting);
      scenario.maxStates = 40'000'000;
      change(scenario);
      const ExplorerReport report = explorer::explore(scenario);
      EXPECT_TRUE(report.ok()) << setting.name() << ": " << report.toString();
      states += report.states;
    }
    RecordProperty("states", static_cast<int>(states));
  }
};

TEST_P(DeviceProtocolExplored, IsRight) {
  exploreAll(3, [](Scenario&) {});
}

TEST_P(DeviceProtocolExplored, IsRightWhileWaitersSleep) {
  // Several streams: a million states each.
  exploreAll(explorationIsLong() ? 2 : 1, [](Scenario& scenario) { scenario.sleeping.emplace(); });
}

TEST_P(DeviceProtocolExplored, IsReleasedByPoison) {
  exploreAll(2, [](Scenario& scenario) { scenario.poisoning = Poisoning::kUntilDrained; });
}

INSTANTIATE_TEST_SUITE_P(Orders, DeviceProtocolExplored,
                         testing::ValuesIn(explorationIsShort()
                                               ? Orders{"eee", "pee", "gge"}
                                               : Orders{"eee", "ppp", "epe", "pep", "pee", "epp",
                                                        "eppe", "pppp", "ggg", "ege", "gpg", "gggg",
                                                        "lll", "lpl", "ell", "llll"}),
                         orderName);

class DeviceGroupsExplored : public testing::TestWithParam<std::string> {};

TEST_P(DeviceGroupsExplored, AreRight) {
  for (const uint32_t slots : {1u, 2u}) {
    const auto count = [](char kind) {
      return std::count(GetParam().begin(), GetParam().end(), kind);
    };
    const bool isSmall = slots == 1 || count('p') + count('g') + count('l') < 2;
    if (!isSmall && !explorationIsLong()) continue;
    const StreamSet set = explorable(shippedSet(slots));
    const StreamSetting setting{slots, 1, 1, GetParam()};
    Scenario scenario = groups(set, setting);
    scenario.maxStates = 40'000'000;
    const auto explore = [&](const char* how) {
      const ExplorerReport report = explorer::explore(scenario);
      EXPECT_TRUE(report.ok()) << setting.name() << ", " << how << ": " << report.toString();
    };
    explore("awake");
    if (slots > 1) continue;
    scenario.poisoning = Poisoning::kUntilDrained;
    explore("poisoned");
    scenario.poisoning = Poisoning::kNever;
    scenario.sleeping.emplace();
    explore("sleeping");
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, DeviceGroupsExplored,
                         testing::ValuesIn(explorationIsShort()
                                               ? Orders{"ee"}
                                               : Orders{"ee", "pp", "ep", "pe", "gg", "gp", "eg",
                                                        "eee", "ppp", "pep", "ggg", "ll", "lp",
                                                        "le", "lll"}),
                         orderName);

// Heads of more messages than there are slots wait for what stands behind them: why a group goes
// in rounds.
TEST(DeviceGroups, MustNotBeLongerThanTheRing) {
  const StreamSet set = explorable(shippedSet(1));
  const StreamSetting setting{1, 1, 1, "pp"};
  Scenario scenario;
  const Direction direction = addDirection(scenario, set, setting, 0, 1, 2);
  explorer::Actor receiver{"receiver", 1, {}};
  for (const std::vector<Execution>& head : direction.heads) append(receiver.executions, head);
  append(receiver.executions, direction.receives);
  explorer::Actor sender{"sender", 0, {}};
  for (const std::vector<Execution>& send : direction.sends) append(sender.executions, send);
  scenario.actors = {sender, receiver};
  EXPECT_EQ(explorer::explore(scenario).violation, Violation::kDeadlock);
}

// --- Mutants ---

bool isCaught(const std::string& what, size_t which, const std::vector<StreamSetting>& settings) {
  for (const StreamSetting& setting : settings) {
    const StreamSet shipped = shippedSet(setting.slots);
    for (Mutant& mutant : explorer::mutantsOf(shipped[which])) {
      if (mutant.what != what) continue;
      StreamSet set = shipped;
      set[which] = std::move(mutant.program);
      set = explorable(std::move(set));
      Scenario scenario = oneWay(set, setting);
      scenario.finals.clear();  // what nobody waits for harms nobody
      const ExplorerReport report = explorer::explore(scenario);
      if (report.violation == Violation::kNone) continue;
      EXPECT_NE(report.violation, Violation::kBadScenario) << report.what;
      return true;
    }
  }
  return false;
}

class DeviceProtocolMutation : public testing::TestWithParam<size_t> {};

// What was accepted is only asked for by number, and the slot's next one is larger by all slots.
const std::set<std::string> kEquivalent{"stream-get-recv op 2 operand + 1"};

TEST_P(DeviceProtocolMutation, EveryMutantIsCaught) {
  const Program program = shippedSet(2)[GetParam()];
  const auto settings =
      settingsOf(GetParam() < kGetHead    ? Orders{"eee", "ppp", "pee", "epe", "epp", "pep"}
                 : GetParam() < kListSend ? Orders{"ggg", "ege", "egg", "gpg"}
                                          : Orders{"lll", "lle", "ell", "lpl"},
                 3);
  size_t mutants = 0;
  for (const Mutant& mutant : explorer::mutantsOf(program)) {
    EXPECT_EQ(isCaught(mutant.what, GetParam(), settings), !kEquivalent.contains(mutant.what))
        << mutant.what << "\n"
        << program.toString();
    ++mutants;
  }
  EXPECT_GT(mutants, 3u);
  RecordProperty("mutants", static_cast<int>(mutants));
}

std::string programName(const testing::TestParamInfo<size_t>& test) {
  static constexpr const char* kNames[] = {"EagerSend", "EagerRecv", "PutSend", "PutHead",
                                           "PutTail",   "GetHead",   "GetTail", "GetRecv",
                                           "ListSend",  "ListHead"};
  return kNames[test.param];
}

INSTANTIATE_TEST_SUITE_P(Shipped, DeviceProtocolMutation,
                         testing::Range(size_t{0}, explorationIsShort() ? 2 : size_t{kPrograms}),
                         programName);

}  // namespace
}  // namespace peerlane
