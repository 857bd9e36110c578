// SPDX-License-Identifier: Apache-2.0
//
// Trigger: the programs of a triggered queue, which a device runs to launch what was posted before
// and to wait for its completion. The words: a *bell* that the device stores and a server reads, a
// *count* of operations that are complete, a word that says that a *peek* was passed, and *signals*
// to which the peer adds. The split into commit and peek is PeerDirect Async's (2017). Each
// function adds ops to a program whose first targets are those below. Thread-safe: no state.
#pragma once

#include <cstdint>
#include <span>

#include "peerlane/program/model/program.h"

namespace peerlane {

enum TriggerTarget : TargetId {
  kTriggerBell,     // local: the number of the last operation that is launched
  kTriggerCount,    // local: the number of the last operation that is complete
  kTriggerPassed,   // local: a word for each peek that may be under way
  kTriggerArrived,  // local: this side's signals
  kTriggerSignals,  // remote: the peer's signals
  kTriggerFirstMemory
};

// The word at `offset` of this side's signals has at least `value`.
struct TriggerArrival {
  uint64_t offset = 0;
  uint64_t value = 0;
};

// So many ops they add.
inline constexpr uint32_t kDoorbellOps = 1;
inline constexpr uint32_t kMappedEndOps = 1;
inline constexpr uint32_t kPeekOps = 2;  // and one for each arrival

// The targets above, where the program has none yet.
void declareTrigger(Program& program);
// The commit of a doorbell queue: launches operations up to `last`.
void emitDoorbell(Program& program, uint64_t last);
// The commit of a mapped queue, after ops that move the bytes: operations up to `last` are
// complete.
void emitMappedEnd(Program& program, uint64_t last);
// An addition to the word at `offset` of the peer's signals, after everything that the program
// wrote before.
void emitSignal(Program& program, uint64_t offset, uint64_t value);
// The same by a device, which adds to no word of a host: the word at `offset` is one of the
// signal's that nobody else stores to, and `total` is what this side has added by it.
void emitSignalTotal(Program& program, uint64_t offset, uint64_t total);
// Waits for operations up to `last` and for the arrivals; then tells the host that the peek with
// word `mark` and number `making` was passed.
void emitPeek(Program& program, uint64_t last, std::span<const TriggerArrival> arrivals,
              uint32_t mark, uint64_t making);

}  // namespace peerlane
