// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "peerlane/program/kernel/message/put_kernel.h"
#include "peerlane/program/kernel/message/ring_slot_kernel.h"

namespace peerlane::kernel {
namespace {

Status invalidRingSlot(const std::string& what) {
  return Status(Code::kInvalidArgument, "a kernel of a ring slot " + what);
}

}  // namespace

Status checkPut(const PutLaunch& launch) {
  const PutJob& job = launch.job;
  if (!isSlotCount(job.slots))
    return invalidRingSlot("has rings of 1, 2, 4, 8, 16 or 32 slots, not " +
                           std::to_string(job.slots));
  if (!isRing(job.wait) || !isRing(job.tell))
    return invalidRingSlot("waits for a word and stores one");
  if ((job.checkAt | job.allocationAt | job.generationAt | job.offsetAt | job.valueAt) % 8 != 0)
    return invalidRingSlot("has words on 8 bytes");
  if (job.table.entries == nullptr || job.table.slots == 0 || job.table.version == 0)
    return invalidRingSlot("puts into regions of a table");
  if (job.from == nullptr && job.bytes != 0) return invalidRingSlot("copies from or to memory");
  if (job.advance != 0 && job.cursorWord == nullptr)
    return invalidRingSlot("advances a cursor word");
  if (job.bytes > kAlonePutBytes && (job.place == nullptr || job.arrivals == nullptr))
    return invalidRingSlot("needs words in the device's memory for more than one block");
  return Status::ok();
}

Status checkRingSlot(const RingSlotLaunch& launch) {
  const RingSlotJob& job = launch.job;
  if (!isSlotCount(job.slots))
    return invalidRingSlot("has rings of 1, 2, 4, 8, 16 or 32 slots, not " +
                           std::to_string(job.slots));
  if (!isRing(job.wait) || !isRing(job.tell))
    return invalidRingSlot("waits for a word and stores one");
  if ((job.checkAt | job.valuesAt) % 8 != 0) return invalidRingSlot("has words on 8 bytes");
  if (job.valueCount > kMostSlotValues)
    return invalidRingSlot("stores at most 4 values, not " + std::to_string(job.valueCount));
  if (job.advance != 0 && job.cursorWord == nullptr)
    return invalidRingSlot("advances a cursor word");
  return Status::ok();
}

}  // namespace peerlane::kernel
