// SPDX-License-Identifier: Apache-2.0
//
// Machine: the memory model of the explorer: which moves a state allows and what each does. Knows
// scripts and cells, neither programs nor protocols. Immutable after creation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "explore/explorer_script.h"

namespace peerlane::explorer {

// One flat record, so that copying and hashing are trivial. Cells (then one announcement cell per
// actor), one event flag each, for each actor which sides have raised its event in this sleep (a
// bit for the first actor of a side), one poison flag, then per actor: program counter, phase,
// number of effects issued and not yet happened, and their indices in order of issue.
using State = std::vector<uint32_t>;

struct Move {
  uint32_t actor = 0;   // == number of actors: the environment
  uint32_t effect = 0;  // kStep, or position among the actor's issued effects
};
inline constexpr uint32_t kStep = 0xffff;

struct Finding {
  Violation violation = Violation::kNone;
  std::string what{};
};

class Machine {
 public:
  Machine(const Scenario& scenario, Scripts scripts);

  State initial(std::vector<std::string>* log) const;
  // Empty when nothing can happen any more.
  void moves(const State& state, std::vector<Move>& out) const;
  // `log`, when given, gets a line per thing that happened.
  Finding apply(State& state, const Move& move, std::vector<std::string>* log) const;
  // For a state without moves: everybody ended and all counters are right, or why not.
  Finding judgeEnd(const State& state) const;

 private:
  // The steps of an actor at a wait towards sleep (kAwake: it does not sleep, or does not wait).
  enum class Phase : uint32_t { kAwake, kAnnounced, kAsleep };
  static constexpr uint32_t kMaxIssued = 16;

  uint32_t* actorOf(State& state, uint32_t actor) const;
  const uint32_t* actorOf(const State& state, uint32_t actor) const;
  const Instruction& instructionOf(const State& state, uint32_t actor) const;
  const Effect& effectOf(const State& state, uint32_t actor, uint32_t position) const;

  bool canHappen(const State& state, uint32_t actor, uint32_t position) const;
  bool canStep(const State& state, uint32_t actor) const;
  bool canStepWait(const State& state, uint32_t actor, const Instruction& wait) const;
  bool hasIssuedWriteTo(const State& state, uint32_t actor, uint32_t cell) const;
  bool isSatisfied(const State& state, const Instruction& wait) const;
  bool isReleased(const State& state, const Instruction& wait) const;
  bool isPoisonable(const State& state) const;
  uint32_t eventOf(uint32_t actor) const;
  uint32_t firstOfSide(uint32_t actor) const;

  Finding happen(State& state, uint32_t actor, uint32_t position,
                 std::vector<std::string>* log) const;
  Finding step(State& state, uint32_t actor, std::vector<std::string>* log) const;
  void stepWait(State& state, uint32_t actor, const Instruction& wait,
                std::vector<std::string>* log) const;
  Finding lookAt(const State& state, uint32_t actor, const Instruction& look) const;
  void wake(State& state, uint32_t producer, uint32_t side, std::vector<std::string>* log) const;
  void poison(State& state, std::vector<std::string>* log) const;
  void announce(State& state, uint32_t actor, bool asleep) const;
  // Takes the steps that no other actor can notice or hinder.
  Finding settle(State& state, std::vector<std::string>* log) const;
  bool happenPrivately(State& state, uint32_t actor, std::vector<std::string>* log) const;
  bool isSilent(const State& state, uint32_t actor) const;
  std::string line(uint32_t actor, const std::string& text) const;
  std::string valueText(Value value) const;

  const Scenario& scenario_;
  Scripts scripts_;
  std::vector<std::vector<std::vector<bool>>> overlaps_;  // [actor][effect][effect]: keep order
  uint32_t events_ = 0;                                   // where the parts of a state begin
  uint32_t raisers_ = 0;
  uint32_t poisonFlag_ = 0;
  uint32_t actors_ = 0;
  uint32_t size_ = 0;
};

}  // namespace peerlane::explorer
