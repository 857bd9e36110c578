// SPDX-License-Identifier: Apache-2.0
//
// CommitSlot and PeekSlot: one commit and one peek of a triggered queue, from their making to their
// end. The queue owns a fixed number of each and uses them again. The poster writes them before it
// makes them (MadeState::make); afterwards they are constant, but for `works`, which belong to the
// thread that took the slot to kRunning or kEnding, and to the poster again once it is kEnded.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "peerlane/channel/protocol/trigger_protocol.h"
#include "peerlane/channel/trigger/entry_writer.h"
#include "peerlane/channel/trigger/made_state.h"
#include "peerlane/channel/trigger/posted_work.h"
#include "peerlane/channel/trigger/trigger_signals.h"
#include "peerlane/channel/trigger/trigger_stream.h"
#include "peerlane/program/cpu/cpu_program.h"

namespace peerlane {

// A program that is ready for the queue's executor.
struct ReadyProgram {
  cpu::CpuProgram onCpu;
  Program onDevice;  // instead, of a queue of a device; the next has it lowered
  TriggerStream::Run run;
  const Program& program() const { return onDevice.ops.empty() ? onCpu.program() : onDevice; }
  void clear() {
    onCpu.clear();
    onDevice = {};
    run.program.reset();
    run.ticket.store(TriggerStream::Run::kElsewhere, std::memory_order_relaxed);
  }
};

struct CommitSlot {
  MadeState state;
  uint64_t number = 0;
  // The number of its last operation. Also read by threads that find out afterwards, by the state,
  // of which making it was.
  std::atomic<uint64_t> last{0};
  uint64_t entries = 0;  // of the mailbox
  PostedWorks works;
  std::vector<TriggerArrival> arrivals;
  uint64_t awaited = 0;  // arrivals of this commit and those before it
  std::vector<TriggerAddition> additions;
  ReadyProgram ready;
  OpenEntries before;            // as it was before its first operation
  uint64_t seenRevocations = 0;  // UseGate::revocations() before the first of it was posted
  bool isGood = false;           // once it has ended: its operations are complete
  uint32_t peeks = 0;            // under way; the poster's
};

struct PeekSlot {
  MadeState state;
  uint64_t number = 0;  // of the commit
  uint64_t last = 0;
  std::vector<TriggerArrival> arrivals;
  ReadyProgram ready;
  cpu::CpuRun run;  // the executor's
};

}  // namespace peerlane
