// SPDX-License-Identifier: Apache-2.0
//
// Script: what one actor of a scenario does, with every place resolved to cells and every operand
// to a number: the cursors are known beforehand, so nothing is left to compute while exploring.
// Immutable after creation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "explore/explorer.h"
#include "explore/explorer_cells.h"

namespace peerlane::explorer {

// A cell holds a counter (poison stands for everything from kPoisoned on), a word of 32 bits, or a
// piece of a message.
using Value = uint32_t;
inline constexpr Value kPoisoned = Value{1} << 30;

inline Value pieceOf(uint32_t message, uint64_t offset) {
  return message == 0 ? 0 : (message << 16) + static_cast<Value>(offset & 0xffff) + 1;
}
inline uint32_t messageOf(Value value) {
  return value == 0 ? 0 : (value - 1) >> 16;
}

// Something that becomes visible to everybody at one moment: a piece of a copy, a store, a fill.
struct Effect {
  enum class Kind : uint8_t { kCopy, kSet, kAdd };
  Kind kind = Kind::kSet;
  bool release = false;
  bool isCounter = false;
  bool isPrivate = false;  // no other actor touches these cells: when it happens, nobody can tell
  std::vector<uint32_t> to{};
  std::vector<uint32_t> from{};  // kCopy
  std::vector<Value> values{};   // kSet, kAdd; kCopy: of the first cells, before those of `from`
  std::string text{};
};

struct Expected {
  uint32_t cell = 0;
  Value value = 0;
};

struct Instruction {
  enum class Kind : uint8_t {
    kIssue,  // effects [first, first+count) may happen from now on
    kLook,   // reads `expected`; wrong values are a finding
    kWait,   // for `cell`
    kFence,  // all effects issued so far have happened
    kWake,   // look who sleeps on side `first`
    kDone,   // the last one; where poison leads
  };
  Kind kind = Kind::kDone;
  Compare compare = Compare::kGreaterEqual;
  Width width = Width::k64;
  bool isPrivate = false;  // kLook: as for effects
  uint32_t first = 0;
  uint32_t count = 0;
  uint32_t cell = 0;
  int64_t operand = 0;
  std::vector<Expected> expected{};
  std::string text{};
};

struct Script {
  std::vector<Instruction> instructions;
  std::vector<Effect> effects;
};

// All scripts of a scenario, over one set of cells. `defect` is not empty when the scenario is
// wrong.
struct Scripts {
  std::vector<Script> actors;
  uint32_t cellCount = 0;
  std::vector<bool> isWord;     // by cell
  std::vector<bool> isCounter;  // of them, those of 8 bytes
  std::vector<std::string> cellNames;
  std::vector<Expected> finals;
  std::string defect;
};
Scripts compile(const Scenario& scenario);

}  // namespace peerlane::explorer
