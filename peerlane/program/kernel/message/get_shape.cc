// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "peerlane/program/kernel/message/get_kernel.h"

namespace peerlane::kernel {
namespace {

Status invalidGet(const std::string& what) {
  return Status(Code::kInvalidArgument, "a get kernel " + what);
}

Status checkSlots(uint32_t slots) {
  if (isSlotCount(slots)) return Status::ok();
  return invalidGet("has rings of 1, 2, 4, 8, 16 or 32 slots, not " + std::to_string(slots));
}

}  // namespace

Status checkGet(const GetLaunch& launch) {
  const GetJob& job = launch.job;
  PEERLANE_RETURN_IF_ERROR(checkSlots(job.slots));
  for (const RingWord* word : {&job.wait, &job.accept, &job.tell})
    if (!isRing(*word)) return invalidGet("waits for a word and stores two, all on 8 bytes");
  if ((job.checkAt | job.allocationAt | job.generationAt | job.offsetAt) % 8 != 0)
    return invalidGet("has words on 8 bytes");
  if (job.table.entries == nullptr || job.table.slots == 0 || job.table.version == 0)
    return invalidGet("gets from regions of a table");
  if (job.to == nullptr && job.bytes != 0) return invalidGet("copies to memory");
  if (job.advance != 0 && job.cursorWord == nullptr) return invalidGet("advances a cursor word");
  if (job.bytes > kAlonePutBytes && (job.place == nullptr || job.arrivals == nullptr))
    return invalidGet("needs words in the device's memory for more than one block");
  return Status::ok();
}

Status checkGetEnd(const GetEndLaunch& launch) {
  const GetEndJob& job = launch.job;
  PEERLANE_RETURN_IF_ERROR(checkSlots(job.slots));
  if (!isRing(job.wait) || !isRing(job.accepted))
    return invalidGet("ends with a word that is waited for and one that is looked at");
  if (job.advance != 0 && job.cursorWord == nullptr) return invalidGet("advances a cursor word");
  return Status::ok();
}

}  // namespace peerlane::kernel
