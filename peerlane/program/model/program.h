// SPDX-License-Identifier: Apache-2.0
//
// Program: the waist of the library. Protocols emit it, executors run it, links say how its targets
// are reached. A plain value: it can be printed, stored, checked, replayed, explored. It holds no
// address.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "peerlane/core/status.h"
#include "peerlane/program/model/op.h"

namespace peerlane {

// Where a target lies, seen from the side that runs the program.
enum class Side : uint8_t { kLocal, kRemote };

// One declared target. `slots` > 0 makes it a ring of equal slots, indexed by `cursor`. `late`:
// bound only when the program reaches the first op that touches it (a receiver learns the sender's
// buffer from the message that it waited for). `packets`: LL packets (op.h); places in it are
// counted in payload bytes alone, and only copyPackets() may write it.
struct Target {
  const char* name = "";
  Side side = Side::kLocal;
  bool late = false;
  CursorId cursor = kNoCursor;
  uint32_t slots = 0;
  uint32_t strideBytes = 0;
  bool packets = false;
};

// One piece of a scattered list.
struct Segment {
  TargetId to = kNoTarget;
  TargetId from = kNoTarget;
  uint64_t toOffset = 0;
  uint64_t fromOffset = 0;
  uint64_t bytes = 0;
};

// The blocks of a list op: scattered (explicit segments), strided (count blocks at fixed
// distances), indexed (block numbers arrive with every post; adjacent runs are merged by the
// executor) or numbered (the layout has the numbers).
struct CopyLayout {
  enum class Kind : uint8_t { kScattered, kStrided, kIndexed, kNumbered };
  Kind kind = Kind::kScattered;
  std::vector<Segment> segments{};  // kScattered
  // All others: block 0, whose `bytes` is the block size; distance between block i and block i+1.
  Segment first{};
  uint64_t toStride = 0;
  uint64_t fromStride = 0;
  uint64_t count = 0;  // kStrided, kNumbered: blocks; kIndexed: the most one post may name
  // kIndexed, kNumbered: block numbers below this are inside the region.
  uint64_t toLimit = 0;
  uint64_t fromLimit = 0;
  // kNumbered: as many as blocks.
  std::vector<uint32_t> toNumbers{};
  std::vector<uint32_t> fromNumbers{};

  // Of all kinds but kScattered: the block with these numbers.
  Segment blockAt(uint64_t toNumber, uint64_t fromNumber) const {
    Segment block = first;
    block.toOffset += toNumber * toStride;
    block.fromOffset += fromNumber * fromStride;
    return block;
  }
  // Calls visit(const Segment&) for each block in order. kIndexed has none of its own.
  template <typename Visit>
  void eachBlock(const Visit& visit) const {
    for (const Segment& segment : segments) visit(segment);
    if (kind == Kind::kStrided)
      for (uint64_t i = 0; i < count; ++i) visit(blockAt(i, i));
    for (size_t i = 0; i < toNumbers.size(); ++i) visit(blockAt(toNumbers[i], fromNumbers[i]));
  }
};

struct Program {
  const char* name = "";
  std::vector<Target> targets;
  std::vector<Op> ops;
  std::vector<CopyLayout> lists;
  // How far cursor i moves once per execution. Its size is the number of cursors.
  std::vector<uint32_t> cursorAdvance;

  // One line per op, e.g. "wait  data[cursor0+1] >= cursor0+1". For people; the format is not
  // stable.
  std::string toString() const;
  // kInvalidArgument naming the op when a target, cursor, list or width is out of range or an op
  // has no meaning (a copy to nowhere, a list without segments, a word that is not aligned).
  Status check() const;
};

// Writes programs. Chained calls in the order of execution.
class ProgramBuilder {
 public:
  // Reserves room for most programs, because every post that is not prepared makes one.
  explicit ProgramBuilder(const char* name) {
    program_.name = name;
    program_.targets.reserve(4);
    program_.ops.reserve(4);
  }

  CursorId cursor(uint32_t advancePerExecution);
  TargetId target(Target target);
  TargetId local(const char* name) { return target({.name = name, .side = Side::kLocal}); }
  TargetId remote(const char* name) { return target({.name = name, .side = Side::kRemote}); }

  ProgramBuilder& copy(Place to, Place from, uint64_t bytes);
  // `to` holds LL packets: every packet gets `number`, and the packets may become visible in any
  // order.
  ProgramBuilder& copyPackets(Place to, Place from, uint64_t bytes, Operand number);
  // Waits until all packets of `bytes` payload bytes at `from` have at least `number`.
  ProgramBuilder& waitPackets(Place from, Operand number, uint64_t bytes);
  ProgramBuilder& copyList(CopyLayout layout);
  ProgramBuilder& store(Place word, Operand value, Order order, Width width = Width::k64);
  ProgramBuilder& add64(Place word, Operand value, Order order);
  ProgramBuilder& wait(Place word, Operand value, Compare compare = Compare::kGreaterEqual,
                       Width width = Width::k64);
  ProgramBuilder& fence(Scope scope = Scope::kSystem);
  ProgramBuilder& flush(TargetId peerTarget);

  Program build() { return std::move(program_); }

 private:
  Program program_;
};

}  // namespace peerlane
