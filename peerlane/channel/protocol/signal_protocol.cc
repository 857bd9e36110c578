// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/protocol/signal_protocol.h"

#include <utility>

namespace peerlane {

void declarePayload(ProgramBuilder& program, const PutPayload& payload) {
  for (const Target& target : payload.targets) program.target(target);
}

namespace {

void moveBlocks(ProgramBuilder& program, CopyLayout layout) {
  if (layout.kind == CopyLayout::Kind::kScattered && layout.segments.size() == 1) {
    const Segment& only = layout.segments.front();
    program.copy({.target = only.to, .offset = only.toOffset},
                 {.target = only.from, .offset = only.fromOffset}, only.bytes);
    return;
  }
  program.copyList(std::move(layout));
}

}  // namespace

void movePayload(ProgramBuilder& program, PutPayload payload) {
  moveBlocks(program, std::move(payload.layout));
  if (!payload.byAgent.empty()) moveBlocks(program, {.segments = std::move(payload.byAgent)});
}

Program signalSender(uint64_t value) {
  ProgramBuilder program("signal");
  program.remote("counter");
  program.add64({.target = kSignalSenderCounter}, {.delta = static_cast<int64_t>(value)},
                Order::kRelease);
  return program.build();
}

Program putSignal(PutPayload payload, uint64_t value) {
  ProgramBuilder program("put-signal");
  program.remote("counter");
  declarePayload(program, payload);
  movePayload(program, std::move(payload));
  program.add64({.target = kSignalSenderCounter}, {.delta = static_cast<int64_t>(value)},
                Order::kRelease);
  return program.build();
}

}  // namespace peerlane
