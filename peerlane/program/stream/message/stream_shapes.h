// SPDX-License-Identifier: Apache-2.0
//
// Programs of a shape for which there is a kernel of its own. StreamRingSlot: the words of one ring
// slot, without a copy (ring-slot kernel). StreamPackets: a side of a message in LL packets.
// StreamPut: the sender's side of rendezvous-put, a copy to the place that a ring names. match()
// recognises them by their steps alone, whichever protocol made the program. Immutable once made.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "peerlane/program/device/step_list.h"
#include "peerlane/program/kernel/launch/word_step.h"
#include "peerlane/program/kernel/message/packet_kernel.h"
#include "peerlane/program/kernel/message/put_kernel.h"
#include "peerlane/program/kernel/message/ring_slot_kernel.h"
#include "peerlane/program/stream/message/message_step.h"

namespace peerlane::stream {

// Words in the device's memory that the launches of one stream share: zero at first; one launch at
// a time uses them.
struct StreamWords {
  uint32_t* arrivals = nullptr;
  kernel::PutPlace* place = nullptr;
};

inline constexpr uint32_t kNoStep = ~uint32_t{0};

// Fills in the part of a call that the jobs of all these kernels have in common.
template <class Job>
void describeCall(Job& job, const StepCall& call, const kernel::WordStore& completion) {
  job.cursor = call.cursor;
  job.cursorWord = reinterpret_cast<uint64_t*>(call.cursorWord);
  job.advance = call.cursorWord == nullptr ? 0 : static_cast<uint32_t>(call.advance);
  job.abort = reinterpret_cast<const uint64_t*>(call.abort);
  job.fault = reinterpret_cast<uint64_t*>(call.fault);
  job.ended = reinterpret_cast<uint64_t*>(call.ended);
  job.faultValue = static_cast<uint32_t>(call.faultValue);
  job.completion = completion.word;
  job.completionValue = completion.value.delta;
}

class StreamRingSlot {
 public:
  static std::optional<StreamRingSlot> match(std::span<const LoweredStep> steps);
  // `stepOf`: the step of each op that may be patched.
  Status launch(const StepCall& call, std::span<const uint32_t> stepOf,
                const kernel::WordStore& completion, bool overlapsEnd, void* stream) const;

 private:
  kernel::RingSlotLaunch launch_;
  uint32_t firstValue_ = kNoStep;  // the step of values[0]
};

class StreamPackets {
 public:
  static std::optional<StreamPackets> match(std::span<const LoweredStep> steps);
  Status launch(const StepCall& call, const kernel::WordStore& completion, bool overlapsEnd,
                void* stream) const;

 private:
  kernel::PacketLaunch launch_;
};

class StreamPut {
 public:
  static std::optional<StreamPut> match(std::span<const LoweredStep> steps, const LateSource& late);
  Status launch(const StepCall& call, std::span<const uint32_t> stepOf,
                const kernel::RegionTable& table, const kernel::WordStore& completion,
                const StreamWords& words, bool overlapsEnd, void* stream) const;

 private:
  kernel::PutLaunch launch_;
  uint32_t copyStep_ = kNoStep;
  uint32_t valueStep_ = kNoStep;
};

}  // namespace peerlane::stream
