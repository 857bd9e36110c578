// SPDX-License-Identifier: Apache-2.0
//
// The explorer: runs every interleaving of the programs of two (or more) sides in a model of memory
// that is as weak as any device we know, and says whether a protocol can go wrong. A tool for
// tests; nothing at run time uses it. Thread-safe: no state.
//
// The model. Every copy falls into pieces. A piece is read and written at any time between its op
// and the next fence or release of the same actor; relaxed stores likewise; so later ops overtake
// them in any order, but for two accesses of one actor to the same bytes. A release store becomes
// visible after everything issued before it, and may be overtaken by what comes after it. A wait
// has acquire meaning: nothing after it happens before. The user refills a source as soon as the
// execution that sent it has ended, reads a destination then, and once more before using it again.
// Every 8-byte word that an op stores, adds to or waits for is a counter: it may not go back, and
// poison falls on it. Words of 4 bytes may hold anything.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "peerlane/program/model/program.h"

namespace peerlane::explorer {

// Memory of one side.
struct Area {
  std::string name;
  int side = 0;
  uint64_t bytes = 0;
};

struct Range {
  uint32_t area = 0;  // index into Scenario::areas
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// Bytes that belong to a message. Messages count from 1 and grow with time; 0 is "nothing yet".
struct Tagged {
  Range range;
  uint32_t message = 0;
};
inline constexpr uint32_t kLastMessage = 4095;

// The binder of `target` reads `read` when the program first touches the target.
struct LateSource {
  TargetId target = kNoTarget;
  Tagged read;
};

// One run of a program.
struct Execution {
  const Program* program = nullptr;  // outlives the exploration
  std::vector<uint64_t> cursors{};   // one for each cursor of the program
  std::vector<Range> targets{};      // where each target begins (`bytes` is ignored)
  std::vector<Tagged> fills{};       // what the user writes before it
  std::vector<LateSource> lates{};
  std::vector<Tagged> expects{};  // what the user must find after it
  bool keepsBuffers = false;      // the user does not write its buffers again right after it
};

// A thread, stream or agent: runs its executions one after the other. Several may share a side.
struct Actor {
  std::string name;
  int side = 0;
  std::vector<Execution> executions;
};

// A waiter may sleep: it announces that, looks once more, then sleeps until an event; a producer
// stores, then looks for the announcement and raises the event, once in each sleep. The parts of
// the rule can be left out, to see what that breaks.
struct WakeRule {
  bool announceFence = true;  // between the announcement and the second look
  bool secondLook = true;
  bool producerFence = true;  // between the store and the look for the announcement
  bool producerLooks = true;
  bool onceASleep = true;        // a side raises the event once in each sleep (its actors
                                 // know what one of them did)
  bool sleepsAreCounted = true;  // it can tell this sleep from the one before
  // Every sleeper has an event of its own. Shared by the actors of a side, the wrong one may take
  // it.
  bool ownEvents = true;
};

// Poison may fall on all counters of the lane at any moment. It releases every wait; an execution
// released by it ends there, runs no further op, and is the last of its actor; its buffers stay
// untouched. Executions that end without having met it must be right.
enum class Poisoning : uint8_t { kNever, kOnce, kUntilDrained };

struct ExpectedWord {
  Range word;
  uint64_t value = 0;
};

struct Scenario {
  std::vector<Area> areas;
  std::vector<Actor> actors;
  std::vector<ExpectedWord> finals;  // counters when everybody has ended, without poison
  std::optional<WakeRule> sleeping;
  Poisoning poisoning = Poisoning::kNever;
  uint64_t maxStates = 4'000'000;
  // Steps that no other actor can notice or hinder are taken at once instead of at every possible
  // moment. Changes no verdict (a test compares), only the number of states.
  bool reduce = true;
};

enum class Violation : uint8_t {
  kNone,
  kDeadlock,              // nobody can go on, somebody has not ended (a lost wake-up as well)
  kReadBeforeWrite,       // a message was read that was not there
  kOverwriteBeforeDrain,  // a later message (or the user's refill) lay where one had to be read
  kStaleReplay,           // an earlier message lay there
  kLostSignal,            // a counter ended below (or above) the sum of its signals
  kCounterWentBack,       // two writers or wrong order on one counter
  kBadScenario,           // a target outside its area, a missing cursor
};
const char* violationName(Violation violation);

struct ExplorerReport {
  Violation violation = Violation::kNone;
  std::string what;                // one sentence: actor, place, found, expected
  std::vector<std::string> trace;  // a shortest interleaving that leads there
  uint64_t states = 0;
  bool complete = true;  // false: maxStates reached before all were seen
  bool ok() const { return violation == Violation::kNone && complete; }
  std::string toString() const;
};

ExplorerReport explore(const Scenario& scenario);

}  // namespace peerlane::explorer
