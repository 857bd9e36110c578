// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/protocol/trigger_protocol.h"

namespace peerlane {
namespace {

Operand constant(uint64_t value) {
  return {.delta = static_cast<int64_t>(value)};
}

}  // namespace

void declareTrigger(Program& program) {
  if (!program.targets.empty()) return;
  program.targets.push_back({.name = "bell"});
  program.targets.push_back({.name = "count"});
  program.targets.push_back({.name = "passed"});
  program.targets.push_back({.name = "arrived"});
  program.targets.push_back({.name = "signals", .side = Side::kRemote});
}

// A release: the server reads the bytes that this side wrote before.
void emitDoorbell(Program& program, uint64_t last) {
  program.ops.push_back({.code = OpCode::kStore,
                         .order = Order::kRelease,
                         .to = {.target = kTriggerBell},
                         .operand = constant(last)});
}

// A release: who has read the count may use the bytes of a get, and write those of a put again.
void emitMappedEnd(Program& program, uint64_t last) {
  program.ops.push_back({.code = OpCode::kStore,
                         .order = Order::kRelease,
                         .to = {.target = kTriggerCount},
                         .operand = constant(last)});
}

void emitSignal(Program& program, uint64_t offset, uint64_t value) {
  program.ops.push_back({.code = OpCode::kAdd64,
                         .order = Order::kRelease,
                         .to = {.target = kTriggerSignals, .offset = offset},
                         .operand = constant(value)});
}

void emitSignalTotal(Program& program, uint64_t offset, uint64_t total) {
  program.ops.push_back({.code = OpCode::kStore,
                         .order = Order::kRelease,
                         .to = {.target = kTriggerSignals, .offset = offset},
                         .operand = constant(total)});
}

void emitPeek(Program& program, uint64_t last, std::span<const TriggerArrival> arrivals,
              uint32_t mark, uint64_t making) {
  program.ops.push_back(
      {.code = OpCode::kWait, .to = {.target = kTriggerCount}, .operand = constant(last)});
  for (const TriggerArrival& arrival : arrivals)
    program.ops.push_back({.code = OpCode::kWait,
                           .to = {.target = kTriggerArrived, .offset = arrival.offset},
                           .operand = constant(arrival.value)});
  program.ops.push_back({.code = OpCode::kStore,
                         .to = {.target = kTriggerPassed, .offset = uint64_t{mark} * 8},
                         .operand = constant(making)});
}

}  // namespace peerlane
