// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "peerlane/program/kernel/put_kernel.h"
#include "peerlane/program/kernel/turn_kernel.h"

namespace peerlane::kernel {
namespace {

constexpr uint32_t kWarpBytes = 512;

bool isRing(const TurnWord& word) {
  return word.base != nullptr &&
         ((reinterpret_cast<uintptr_t>(word.base) | word.strideBytes) & 7) == 0;
}

Status invalid(const std::string& what) {
  return Status(Code::kInvalidArgument, "a kernel of one turn " + what);
}

bool isSlotCount(uint32_t slots) {
  return slots != 0 && slots <= kMostTurnSlots && (slots & (slots - 1)) == 0;
}

}  // namespace

Status checkPut(const PutLaunch& launch) {
  const PutJob& job = launch.job;
  if (!isSlotCount(job.slots))
    return invalid("has rings of 1, 2, 4, 8, 16 or 32 slots, not " + std::to_string(job.slots));
  if (!isRing(job.wait) || !isRing(job.tell)) return invalid("waits for a word and stores one");
  if ((job.checkAt | job.allocationAt | job.generationAt | job.offsetAt | job.valueAt) % 8 != 0)
    return invalid("has words on 8 bytes");
  if (job.table.entries == nullptr || job.table.slots == 0 || job.table.version == 0)
    return invalid("puts into regions of a table");
  if (job.from == nullptr && job.bytes != 0) return invalid("copies from or to memory");
  if (job.advance != 0 && job.cursorWord == nullptr) return invalid("advances a cursor word");
  if (job.bytes > kAlonePutBytes && (job.place == nullptr || job.arrivals == nullptr))
    return invalid("needs words in the device's memory for more than one block");
  return Status::ok();
}

Status shapeTurn(TurnLaunch& launch, uint32_t& threads) {
  TurnJob& job = launch.job;
  if (!isSlotCount(job.slots))
    return invalid("has rings of 1, 2, 4, 8, 16 or 32 slots, not " + std::to_string(job.slots));
  if (!isRing(job.wait) || !isRing(job.tell)) return invalid("waits for a word and stores one");
  for (const TurnWord* word : {&job.also, &job.tellAlso})
    if (word->base != nullptr && !isRing(*word)) return invalid("has words on 8 bytes");
  if ((job.checkAt | job.valuesAt) % 8 != 0) return invalid("has words on 8 bytes");
  if (job.valueCount > kMostTurnValues)
    return invalid("stores at most 4 values, not " + std::to_string(job.valueCount));
  if (job.bytes > kMostTurnBytes)
    return invalid("copies at most 2048 bytes, not " + std::to_string(job.bytes));
  if (job.advance != 0 && job.cursorWord == nullptr) return invalid("advances a cursor word");
  threads = 32;
  job.unitBytes = 16;
  if (launch.copy == TurnCopy::kNone) job.bytes = 0;
  if (job.bytes == 0) return Status::ok();
  if (job.local == nullptr) return invalid("copies from or to memory");
  const TurnWord& ring = launch.copy == TurnCopy::kToRing ? job.tell : job.wait;
  const uint64_t bits = (reinterpret_cast<uintptr_t>(ring.base) + job.copyAt) | ring.strideBytes |
                        reinterpret_cast<uintptr_t>(job.local) | job.bytes;
  job.unitBytes = bits % 16 == 0 ? 16 : bits % 8 == 0 ? 8 : 0;
  const uint32_t warps = job.unitBytes == 0 ? (job.bytes + kWarpBytes - 1) / kWarpBytes
                                            : (job.bytes / job.unitBytes + 31) / 32;
  threads = warps * 32;
  return Status::ok();
}

}  // namespace peerlane::kernel
