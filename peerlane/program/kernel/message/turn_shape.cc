// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "peerlane/program/kernel/message/put_kernel.h"
#include "peerlane/program/kernel/message/turn_kernel.h"

namespace peerlane::kernel {
namespace {

Status invalidTurn(const std::string& what) {
  return Status(Code::kInvalidArgument, "a kernel of one turn " + what);
}

}  // namespace

Status checkPut(const PutLaunch& launch) {
  const PutJob& job = launch.job;
  if (!isSlotCount(job.slots))
    return invalidTurn("has rings of 1, 2, 4, 8, 16 or 32 slots, not " + std::to_string(job.slots));
  if (!isRing(job.wait) || !isRing(job.tell)) return invalidTurn("waits for a word and stores one");
  if ((job.checkAt | job.allocationAt | job.generationAt | job.offsetAt | job.valueAt) % 8 != 0)
    return invalidTurn("has words on 8 bytes");
  if (job.table.entries == nullptr || job.table.slots == 0 || job.table.version == 0)
    return invalidTurn("puts into regions of a table");
  if (job.from == nullptr && job.bytes != 0) return invalidTurn("copies from or to memory");
  if (job.advance != 0 && job.cursorWord == nullptr) return invalidTurn("advances a cursor word");
  if (job.bytes > kAlonePutBytes && (job.place == nullptr || job.arrivals == nullptr))
    return invalidTurn("needs words in the device's memory for more than one block");
  return Status::ok();
}

Status checkTurn(const TurnLaunch& launch) {
  const TurnJob& job = launch.job;
  if (!isSlotCount(job.slots))
    return invalidTurn("has rings of 1, 2, 4, 8, 16 or 32 slots, not " + std::to_string(job.slots));
  if (!isRing(job.wait) || !isRing(job.tell)) return invalidTurn("waits for a word and stores one");
  if ((job.checkAt | job.valuesAt) % 8 != 0) return invalidTurn("has words on 8 bytes");
  if (job.valueCount > kMostTurnValues)
    return invalidTurn("stores at most 4 values, not " + std::to_string(job.valueCount));
  if (job.advance != 0 && job.cursorWord == nullptr) return invalidTurn("advances a cursor word");
  return Status::ok();
}

}  // namespace peerlane::kernel
