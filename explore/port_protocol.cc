// SPDX-License-Identifier: Apache-2.0
#include "explore/port_protocol.h"

namespace peerlane {
namespace {

ProgramBuilder fifoProgram(const char* name, uint32_t halves) {
  ProgramBuilder program(name);
  program.cursor(halves);
  // The caller gives the laps: not every request begins one.
  program.cursor(0);
  program.cursor(0);
  return program;
}

Target slotsAt(Side side, uint32_t slots) {
  return {.name = "slots",
          .side = side,
          .cursor = kPortPosition,
          .slots = slots,
          .strideBytes = kPortSlotStrideBytes,
          .packets = true};
}

// The mark of a lap: above 0, because fresh memory holds 0.
Operand markOf(uint32_t half) {
  return {.cursor = half == 0 ? kPortLap : kPortSecondLap, .delta = 1};
}

Place slotOf(TargetId slots, uint32_t half) {
  return {.target = slots, .slotDelta = static_cast<int32_t>(half)};
}

}  // namespace

Program portPush(uint32_t slots, uint32_t halves) {
  ProgramBuilder program = fifoProgram(halves == 1 ? "port-push" : "port-push-long", halves);
  program.local("request");
  program.target(slotsAt(Side::kRemote, slots));
  program.local("tail");
  program.wait({.target = kPushTail},
               {.cursor = kPortPosition, .delta = int64_t{halves} - int64_t{slots}});
  // The release of the first half is a fence before it. The second may pass it.
  program.fence();
  for (uint32_t half = 0; half < halves; ++half)
    program.copyPackets(slotOf(kPushSlots, half),
                        {.target = kPushRequest, .offset = uint64_t{half} * kPortSlotBytes},
                        kPortSlotBytes, markOf(half));
  return program.build();
}

Program portPop(uint32_t slots, uint32_t halves) {
  ProgramBuilder program = fifoProgram(halves == 1 ? "port-pop" : "port-pop-long", halves);
  program.target(slotsAt(Side::kLocal, slots));
  program.local("request");
  program.remote("tail");
  for (uint32_t half = 0; half < halves; ++half)
    program.waitPackets(slotOf(kPopSlots, half), markOf(half), kPortSlotBytes);
  for (uint32_t half = 0; half < halves; ++half)
    program.copy({.target = kPopRequest, .offset = uint64_t{half} * kPortSlotBytes},
                 slotOf(kPopSlots, half), kPortSlotBytes);
  program.store({.target = kPopTail}, {.cursor = kPortPosition, .delta = halves}, Order::kRelease);
  return program.build();
}

Program portPut(uint64_t bytes) {
  ProgramBuilder program("port-put");
  program.remote("to");
  program.local("from");
  program.copy({.target = 0}, {.target = 1}, bytes);
  return program.build();
}

Program portStoreSignal() {
  ProgramBuilder program("port-store-signal");
  program.cursor(1);
  program.remote("second");
  program.store({.target = 0}, {.cursor = 0, .delta = 1}, Order::kRelease);
  return program.build();
}

Program portStoreDone() {
  ProgramBuilder program("port-store-done");
  program.cursor(1);
  program.remote("done");
  program.store({.target = 0}, {.cursor = 0}, Order::kRelease);
  return program.build();
}

Program portSignalInline() {
  ProgramBuilder program("port-signal-inline");
  program.cursor(1);
  program.local("done");
  program.remote("first");
  program.wait({.target = 0}, {.cursor = 0}).add64({.target = 1}, {.delta = 1}, Order::kRelease);
  return program.build();
}

Program residentPush(uint32_t slots) {
  ProgramBuilder program("resident-push");
  program.cursor(1);
  program.cursor(0);
  program.local("request");
  program.target(slotsAt(Side::kLocal, slots));
  program.local("tail");
  program.wait({.target = kPushTail}, {.cursor = kPortPosition, .delta = 1 - int64_t{slots}});
  program.fence();
  program.copyPackets({.target = kPushSlots}, {.target = kPushRequest}, kPortSlotBytes, markOf(0));
  return program.build();
}

Program residentServe(uint32_t slots, uint64_t bytes) {
  ProgramBuilder program("resident-serve");
  program.cursor(1);
  program.cursor(0);
  program.target(slotsAt(Side::kLocal, slots));
  program.local("request");
  program.remote("to");
  program.local("from");
  program.local("served");
  program.waitPackets({.target = kServeSlots}, markOf(0), kPortSlotBytes);
  program.copy({.target = kServeRequest}, {.target = kServeSlots}, kPortSlotBytes);
  program.copy({.target = kServeTo}, {.target = kServeFrom}, bytes);
  program.fence();
  program.add64({.target = kServeCount}, {.delta = 1}, Order::kRelaxed);
  return program.build();
}

Program residentFinish(uint32_t blocks, bool raises) {
  ProgramBuilder program("resident-finish");
  program.cursor(blocks);
  program.cursor(1);
  program.local("served");
  program.remote("first");
  program.local("done");
  program.local("tail");
  // The fence of the code is for a memory model in which a thread must pass on what it learned.
  // Here the fences of all blocks have done it.
  program.wait({.target = 0}, {.cursor = 0, .delta = blocks});
  program.add64({.target = 1}, {.delta = 1}, Order::kRelaxed);
  if (raises) {
    program.store({.target = 2}, {.cursor = 1, .delta = 1}, Order::kRelaxed);
    program.store({.target = 3}, {.cursor = 1, .delta = 1}, Order::kRelaxed);
  }
  return program.build();
}

Program portAwait() {
  ProgramBuilder program("port-await");
  program.cursor(1);
  program.local("word");
  program.wait({.target = 0}, {.cursor = 0, .delta = 1});
  return program.build();
}

}  // namespace peerlane
