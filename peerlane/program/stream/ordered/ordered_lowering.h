// SPDX-License-Identifier: Apache-2.0
//
// OrderedLowering: cuts a program into the parts of an OrderedProgram, and refuses what a stream
// cannot do or could not be released from. Used once, by one thread, with the GPU current.
#pragma once

#include <cstdint>
#include <string>

#include "peerlane/program/model/binding.h"
#include "peerlane/program/model/program.h"
#include "peerlane/program/stream/copy/copy_ranges.h"
#include "peerlane/program/stream/copy/engine_choice.h"
#include "peerlane/program/stream/copy/word_abilities.h"
#include "peerlane/program/stream/ordered/ordered_parts.h"

namespace peerlane::stream {

class OrderedLowering {
 public:
  // Everything given must outlive it.
  OrderedLowering(const Program& program, const Binding& binding,
                  const DeviceExecutor::Preferences& preferences, const EngineChoice& choice,
                  const WordAbilities& abilities)
      : program_(program),
        binding_(binding),
        preferences_(preferences),
        choice_(choice),
        abilities_(abilities) {}

  // Errors: those of OrderedProgram::lower().
  Result<OrderedParts> run();

 private:
  Status addOp(const Op& op);
  Status addWord(const Op& op);
  Status addAddition(const Op& op);
  Status addFence(const Op& op);
  Status addFlush(const Op& op);
  Status addCopy(const Op& op);
  Status addSlotCopy(const Op& op);
  Status closeCopies(size_t here = 0);
  void pushWord(const WordOp& word);

  Status refuse(Code code, const std::string& why) const;
  Status checkTarget(TargetId id) const;
  // Of every target that the copy or list names.
  Status checkCopy(const Op& op) const;
  Result<OrderedPlace> placeOf(const Place& place, uint64_t bytes) const;
  // In what kind of memory a word lies, in every slot.
  WordPlace memoryOf(const OrderedPlace& place) const;
  Status checkWordMemory(const Op& op, const WordPlace& memory) const;
  Status checkAdded(const Op& op, const WordPlace& memory) const;
  bool isRing(const Place& place) const { return program_.targets[place.target].slots > 0; }
  // The stream's next op begins with a system-wide fence of its own.
  bool isFencedNext() const;

  const Program& program_;
  const Binding& binding_;
  const DeviceExecutor::Preferences& preferences_;
  const EngineChoice& choice_;
  const WordAbilities& abilities_;
  OrderedParts parts_;
  size_t at_ = 0;      // the op that is being lowered
  CopyRanges copies_;  // those that are no part yet; they stand in a row
};

}  // namespace peerlane::stream
