// SPDX-License-Identifier: Apache-2.0
//
// What an OrderedProgram is made of: parts that a stream does one after the other, each of them one
// call of the driver or a few. Plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "peerlane/program/model/op.h"
#include "peerlane/program/stream/copy/stream_program.h"
#include "peerlane/program/stream/copy/word_ops.h"

namespace peerlane::stream {

using Cursors = std::span<const uint64_t>;

inline uint64_t valueOf(const Operand& operand, Cursors cursors) {
  const auto delta = static_cast<uint64_t>(operand.delta);
  return operand.cursor == kNoCursor ? delta : cursors[operand.cursor] + delta;
}

// An address, or with `slots` > 0 that of a ring's slot, which a cursor says.
struct OrderedPlace {
  std::byte* first = nullptr;  // in slot 0
  uint32_t slots = 0;
  uint32_t strideBytes = 0;
  int32_t slotDelta = 0;
  CursorId cursor = kNoCursor;

  std::byte* at(Cursors cursors) const {
    if (slots == 0) return first;
    const uint64_t position = cursors[cursor] + static_cast<uint64_t>(int64_t{slotDelta});
    return first + position % slots * strideBytes;
  }
};

// The place and the value of words[word] in a post.
struct MovingWord {
  uint32_t word = 0;
  OrderedPlace place;
  Operand value;
};

struct SlotCopy {
  OrderedPlace to, from;
  uint64_t bytes = 0;
};

struct Addition {
  OrderedPlace counter;
  Operand value;
};

struct OrderedPart {
  enum class Kind : uint8_t {
    kWords,     // words[first], `count` of them: memory operations, in batches
    kCopies,    // copies[first]: copies whose order among themselves does not matter
    kSlotCopy,  // slotCopies[first]: a copy from or to a ring
    kAddition,  // additions[first]: by a kernel, because CUDA has no such memory operation
  };
  Kind kind = Kind::kWords;
  uint32_t first = 0;
  uint32_t count = 1;
};

struct OrderedParts {
  std::vector<OrderedPart> order;  // the last one is of words, perhaps of none
  std::vector<WordOp> words;       // and behind the last part's a place for one more
  std::vector<MovingWord> moving;  // those of the words that depend on cursors
  std::vector<std::unique_ptr<StreamProgram>> copies;
  std::vector<SlotCopy> slotCopies;
  std::vector<Addition> additions;
  size_t cursors = 0;  // as many as the program has
  uint64_t bytes = 0;  // of all copies
  bool waits = false;
};

// OK for a wait that some value of its word satisfies. Another one could never be released: `== x`
// for a word too short for x, `& 0`, `nor` with every bit.
Status checkWait(const WordOp& wait);

}  // namespace peerlane::stream
