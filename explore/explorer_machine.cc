// SPDX-License-Identifier: Apache-2.0
#include "explore/explorer_machine.h"

#include <algorithm>

#include "peerlane/program/words/word.h"

namespace peerlane::explorer {
namespace {

// An actor's part of a state.
constexpr uint32_t kCounterAt = 0;
constexpr uint32_t kPhaseAt = 1;
constexpr uint32_t kIssuedAt = 2;
constexpr uint32_t kFirstIssuedAt = 3;

bool intersects(const std::vector<uint32_t>& a, const std::vector<uint32_t>& b) {
  return std::any_of(a.begin(), a.end(),
                     [&](uint32_t cell) { return std::find(b.begin(), b.end(), cell) != b.end(); });
}

bool areOrdered(const Effect& a, const Effect& b) {
  return intersects(a.to, b.to) || intersects(a.to, b.from) || intersects(a.from, b.to);
}

bool isPoisoned(Value value) {
  return value >= kPoisoned;
}

}  // namespace

Machine::Machine(const Scenario& scenario, Scripts scripts)
    : scenario_(scenario), scripts_(std::move(scripts)) {
  const uint32_t actorCount = static_cast<uint32_t>(scripts_.actors.size());
  for (uint32_t actor = 0; actor < actorCount; ++actor) {
    // The last two effects of everybody: taking the announcement of sleep back, and making it.
    for (const Value asleep : {0u, 1u})
      scripts_.actors[actor].effects.push_back({.to = {scripts_.cellCount + actor},
                                                .values = {asleep},
                                                .text = asleep ? "announces sleep" : "is awake"});
    const std::vector<Effect>& effects = scripts_.actors[actor].effects;
    std::vector<std::vector<bool>> ordered(effects.size(), std::vector<bool>(effects.size()));
    for (size_t i = 0; i < effects.size(); ++i)
      for (size_t j = 0; j < effects.size(); ++j)
        ordered[i][j] = areOrdered(effects[i], effects[j]);
    overlaps_.push_back(std::move(ordered));
  }
  events_ = scripts_.cellCount + actorCount;
  raisers_ = events_ + actorCount;
  poisonFlag_ = raisers_ + actorCount;
  actors_ = poisonFlag_ + 1;
  size_ = actors_ + actorCount * (kFirstIssuedAt + kMaxIssued);
}

uint32_t* Machine::actorOf(State& state, uint32_t actor) const {
  return state.data() + actors_ + actor * (kFirstIssuedAt + kMaxIssued);
}
const uint32_t* Machine::actorOf(const State& state, uint32_t actor) const {
  return state.data() + actors_ + actor * (kFirstIssuedAt + kMaxIssued);
}
const Instruction& Machine::instructionOf(const State& state, uint32_t actor) const {
  return scripts_.actors[actor].instructions[actorOf(state, actor)[kCounterAt]];
}
const Effect& Machine::effectOf(const State& state, uint32_t actor, uint32_t position) const {
  return scripts_.actors[actor].effects[actorOf(state, actor)[kFirstIssuedAt + position]];
}

State Machine::initial(std::vector<std::string>* log) const {
  State state(size_, 0);
  (void)settle(state, log);
  return state;
}

uint32_t Machine::eventOf(uint32_t actor) const {
  return scenario_.sleeping->ownEvents ? actor : firstOfSide(actor);
}

// The first actor of a side stands for all of them in the state that they share.
uint32_t Machine::firstOfSide(uint32_t actor) const {
  const auto& actors = scenario_.actors;
  return static_cast<uint32_t>(
      std::find_if(actors.begin(), actors.end(),
                   [&](const Actor& other) { return other.side == actors[actor].side; }) -
      actors.begin());
}

// --- What may happen ---

bool Machine::canHappen(const State& state, uint32_t actor, uint32_t position) const {
  if (position == 0) return true;
  if (effectOf(state, actor, position).release) return false;
  const uint32_t* issued = actorOf(state, actor) + kFirstIssuedAt;
  const std::vector<bool>& ordered = overlaps_[actor][issued[position]];
  return std::none_of(issued, issued + position, [&](uint32_t before) { return ordered[before]; });
}

bool Machine::hasIssuedWriteTo(const State& state, uint32_t actor, uint32_t cell) const {
  const uint32_t count = actorOf(state, actor)[kIssuedAt];
  for (uint32_t i = 0; i < count; ++i) {
    const std::vector<uint32_t>& to = effectOf(state, actor, i).to;
    if (std::find(to.begin(), to.end(), cell) != to.end()) return true;
  }
  return false;
}

// As executors compare.
bool Machine::isSatisfied(const State& state, const Instruction& wait) const {
  return satisfies(state[wait.cell], wait.compare, static_cast<uint64_t>(wait.operand), wait.width);
}

// Poison is a value of counters; to a word of 32 bits it is one like others.
bool Machine::isReleased(const State& state, const Instruction& wait) const {
  return scripts_.isCounter[wait.cell] && isPoisoned(state[wait.cell]);
}

bool Machine::canStepWait(const State& state, uint32_t actor, const Instruction& wait) const {
  if (hasIssuedWriteTo(state, actor, wait.cell)) return false;
  const uint32_t* self = actorOf(state, actor);
  if (!scenario_.sleeping) return isSatisfied(state, wait);
  switch (static_cast<Phase>(self[kPhaseAt])) {
    case Phase::kAwake: return self[kIssuedAt] < kMaxIssued;
    case Phase::kAnnounced: return !scenario_.sleeping->announceFence || self[kIssuedAt] == 0;
    case Phase::kAsleep: return state[events_ + eventOf(actor)] != 0;
  }
  return false;
}

bool Machine::canStep(const State& state, uint32_t actor) const {
  const Instruction& now = instructionOf(state, actor);
  const uint32_t issued = actorOf(state, actor)[kIssuedAt];
  switch (now.kind) {
    case Instruction::Kind::kIssue: return issued + now.count <= kMaxIssued;
    case Instruction::Kind::kLook:
      return std::none_of(now.expected.begin(), now.expected.end(), [&](const Expected& expected) {
        return hasIssuedWriteTo(state, actor, expected.cell);
      });
    case Instruction::Kind::kWait: return canStepWait(state, actor, now);
    case Instruction::Kind::kFence: return issued == 0;
    case Instruction::Kind::kWake: return !scenario_.sleeping->producerFence || issued == 0;
    case Instruction::Kind::kDone: return false;
  }
  return false;
}

bool Machine::isPoisonable(const State& state) const {
  if (scenario_.poisoning == Poisoning::kNever) return false;
  if (state[poisonFlag_] == 0) return true;
  if (scenario_.poisoning == Poisoning::kOnce) return false;
  for (uint32_t cell = 0; cell < scripts_.cellCount; ++cell)
    if (scripts_.isCounter[cell] && !isPoisoned(state[cell])) return true;
  return false;
}

void Machine::moves(const State& state, std::vector<Move>& out) const {
  out.clear();
  const uint32_t actorCount = static_cast<uint32_t>(scripts_.actors.size());
  for (uint32_t actor = 0; actor < actorCount; ++actor) {
    if (canStep(state, actor)) out.push_back({actor, kStep});
    const uint32_t issued = actorOf(state, actor)[kIssuedAt];
    for (uint32_t i = 0; i < issued; ++i)
      if (canHappen(state, actor, i)) out.push_back({actor, i});
  }
  if (isPoisonable(state)) out.push_back({actorCount, kStep});
}

// --- What happens ---

std::string Machine::line(uint32_t actor, const std::string& text) const {
  return scenario_.actors[actor].name + ": " + text;
}

std::string Machine::valueText(Value value) const {
  if (value == 0) return "nothing";
  return "message " + std::to_string(messageOf(value));
}

Finding Machine::happen(State& state, uint32_t actor, uint32_t position,
                        std::vector<std::string>* log) const {
  const Effect& effect = effectOf(state, actor, position);
  Finding finding;
  std::vector<Value> values = effect.values;
  if (effect.kind == Effect::Kind::kCopy)
    for (const uint32_t cell : effect.from) values.push_back(state[cell]);
  for (size_t i = 0; i < effect.to.size(); ++i) {
    Value& cell = state[effect.to[i]];
    if (effect.kind == Effect::Kind::kAdd) values[i] += cell;
    // The bytes of a copy into LL packets come after its number.
    const bool isNumber = effect.isCounter && i < effect.values.size();
    if (isNumber && values[i] < cell && !isPoisoned(cell))
      finding = {Violation::kCounterWentBack,
                 line(actor, effect.text) + " sets " + scripts_.cellNames[effect.to[i]] + " from " +
                     std::to_string(cell) + " back to " + std::to_string(values[i])};
    cell = values[i];
  }
  if (log) log->push_back(line(actor, effect.text + " -> visible"));
  uint32_t* self = actorOf(state, actor);
  uint32_t* issued = self + kFirstIssuedAt;
  const bool beginsSleep = issued[position] == scripts_.actors[actor].effects.size() - 1;
  if (beginsSleep && scenario_.sleeping->sleepsAreCounted) state[raisers_ + actor] = 0;
  std::copy(issued + position + 1, issued + self[kIssuedAt], issued + position);
  issued[--self[kIssuedAt]] = 0;
  return finding;
}

void Machine::announce(State& state, uint32_t actor, bool asleep) const {
  uint32_t* self = actorOf(state, actor);
  const size_t effects = scripts_.actors[actor].effects.size();
  self[kFirstIssuedAt + self[kIssuedAt]++] =
      static_cast<uint32_t>(asleep ? effects - 1 : effects - 2);
}

void Machine::wake(State& state, uint32_t producer, uint32_t side,
                   std::vector<std::string>* log) const {
  if (!scenario_.sleeping->producerLooks) return;
  for (uint32_t actor = 0; actor < scripts_.actors.size(); ++actor) {
    if (static_cast<uint32_t>(scenario_.actors[actor].side) != side) continue;
    if (state[scripts_.cellCount + actor] == 0) continue;
    const uint32_t raiser = 1u << firstOfSide(producer);
    if (scenario_.sleeping->onceASleep && (state[raisers_ + actor] & raiser) != 0) continue;
    state[raisers_ + actor] |= raiser;
    state[events_ + eventOf(actor)] = 1;
    if (log) log->push_back("  and wakes " + scenario_.actors[actor].name);
  }
}

void Machine::poison(State& state, std::vector<std::string>* log) const {
  state[poisonFlag_] = 1;
  for (uint32_t cell = 0; cell < scripts_.cellCount; ++cell)
    if (scripts_.isCounter[cell]) state[cell] = kPoisoned;
  // The environment, which poisons, raises every event.
  if (scenario_.sleeping) std::fill_n(state.begin() + events_, scripts_.actors.size(), 1u);
  if (log) log->push_back("poison falls on all counters");
}

void Machine::stepWait(State& state, uint32_t actor, const Instruction& wait,
                       std::vector<std::string>* log) const {
  uint32_t* self = actorOf(state, actor);
  const Phase phase = static_cast<Phase>(self[kPhaseAt]);
  if (phase == Phase::kAsleep) {
    state[events_ + eventOf(actor)] = 0;
    announce(state, actor, false);
    self[kPhaseAt] = static_cast<uint32_t>(Phase::kAwake);
    if (log) log->push_back(line(actor, "wakes up"));
    return;
  }
  const bool looks = phase == Phase::kAwake || scenario_.sleeping->secondLook;
  if (looks && isSatisfied(state, wait)) {
    if (phase == Phase::kAnnounced) announce(state, actor, false);
    self[kPhaseAt] = static_cast<uint32_t>(Phase::kAwake);
    const bool released = isReleased(state, wait);
    if (log) log->push_back(line(actor, wait.text + (released ? " -> released" : " -> passed")));
    if (released)
      self[kCounterAt] = static_cast<uint32_t>(scripts_.actors[actor].instructions.size() - 1);
    else
      ++self[kCounterAt];
    return;
  }
  if (phase == Phase::kAwake) announce(state, actor, true);
  self[kPhaseAt] =
      static_cast<uint32_t>(phase == Phase::kAwake ? Phase::kAnnounced : Phase::kAsleep);
  if (log)
    log->push_back(
        line(actor, wait.text + (phase == Phase::kAwake ? " -> not yet" : " -> sleeps")));
}

Finding Machine::lookAt(const State& state, uint32_t actor, const Instruction& look) const {
  for (const auto& [cell, value] : look.expected) {
    const Value found = state[cell];
    if (found == value) continue;
    Violation violation = Violation::kReadBeforeWrite;
    if (found != 0 && messageOf(found) < messageOf(value)) violation = Violation::kStaleReplay;
    if (messageOf(found) > messageOf(value)) violation = Violation::kOverwriteBeforeDrain;
    return {violation, line(actor, look.text) + ": " + scripts_.cellNames[cell] + " holds " +
                           valueText(found) + " instead of " + valueText(value)};
  }
  return {};
}

Finding Machine::step(State& state, uint32_t actor, std::vector<std::string>* log) const {
  const Instruction& now = instructionOf(state, actor);
  uint32_t* self = actorOf(state, actor);
  if (now.kind == Instruction::Kind::kWait) {
    stepWait(state, actor, now, log);
    return {};
  }
  if (log) log->push_back(line(actor, now.text));
  Finding finding;
  switch (now.kind) {
    case Instruction::Kind::kIssue:
      for (uint32_t i = 0; i < now.count; ++i)
        self[kFirstIssuedAt + self[kIssuedAt]++] = now.first + i;
      break;
    case Instruction::Kind::kLook: finding = lookAt(state, actor, now); break;
    case Instruction::Kind::kWake: wake(state, actor, now.first, log); break;
    default: break;
  }
  ++self[kCounterAt];
  return finding;
}

// Issuing is private to the actor, and so is a look at cells that no other actor touches. A
// satisfied >= of a counter stays satisfied (one that goes back is a finding), so passing it at
// once changes nothing that may follow; with poison it does.
bool Machine::isSilent(const State& state, uint32_t actor) const {
  if (!scenario_.reduce) return false;
  const Instruction& now = instructionOf(state, actor);
  switch (now.kind) {
    case Instruction::Kind::kIssue:
    case Instruction::Kind::kFence: return true;
    case Instruction::Kind::kLook: return now.isPrivate;
    case Instruction::Kind::kWait:
      return scenario_.poisoning == Poisoning::kNever && now.compare == Compare::kGreaterEqual &&
             scripts_.isCounter[now.cell] &&
             actorOf(state, actor)[kPhaseAt] == static_cast<uint32_t>(Phase::kAwake) &&
             isSatisfied(state, now);
    default: return false;
  }
}

Finding Machine::settle(State& state, std::vector<std::string>* log) const {
  for (uint32_t actor = 0; actor < scripts_.actors.size(); ++actor) {
    for (bool moved = true; moved;) {
      moved = happenPrivately(state, actor, log);
      if (!isSilent(state, actor) || !canStep(state, actor)) continue;
      moved = true;
      if (Finding finding = step(state, actor, log); finding.violation != Violation::kNone)
        return finding;
    }
  }
  return {};
}

bool Machine::happenPrivately(State& state, uint32_t actor, std::vector<std::string>* log) const {
  for (uint32_t i = 0; i < actorOf(state, actor)[kIssuedAt]; ++i) {
    if (!effectOf(state, actor, i).isPrivate || !canHappen(state, actor, i)) continue;
    (void)happen(state, actor, i, log);
    return true;
  }
  return false;
}

Finding Machine::apply(State& state, const Move& move, std::vector<std::string>* log) const {
  Finding finding;
  if (move.actor == scripts_.actors.size())
    poison(state, log);
  else if (move.effect == kStep)
    finding = step(state, move.actor, log);
  else
    finding = happen(state, move.actor, move.effect, log);
  return finding.violation == Violation::kNone ? settle(state, log) : finding;
}

Finding Machine::judgeEnd(const State& state) const {
  std::string stuck;
  for (uint32_t actor = 0; actor < scripts_.actors.size(); ++actor) {
    const Instruction& now = instructionOf(state, actor);
    if (now.kind == Instruction::Kind::kDone) continue;
    if (!stuck.empty()) stuck += "; ";
    stuck += line(actor, now.text);
    if (now.kind == Instruction::Kind::kWait)
      stuck += ", the word " + scripts_.cellNames[now.cell] + " is " +
               std::to_string(state[now.cell]) + ", awaited is " + std::to_string(now.operand);
    if (actorOf(state, actor)[kPhaseAt] == static_cast<uint32_t>(Phase::kAsleep))
      stuck += " (asleep)";
  }
  if (!stuck.empty()) return {Violation::kDeadlock, "nobody can go on: " + stuck};
  if (state[poisonFlag_] != 0) return {};
  for (const auto& [cell, value] : scripts_.finals)
    if (state[cell] != value)
      return {Violation::kLostSignal, scripts_.cellNames[cell] + " ended at " +
                                          std::to_string(state[cell]) + " instead of " +
                                          std::to_string(value)};
  return {};
}

}  // namespace peerlane::explorer
