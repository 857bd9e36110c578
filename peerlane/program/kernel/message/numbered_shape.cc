// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "peerlane/program/kernel/message/numbered_kernel.h"

namespace peerlane::kernel {
namespace {

Status invalidNumbered(const std::string& what) {
  return Status(Code::kInvalidArgument, "a kernel of a numbered message " + what);
}

}  // namespace

Status checkNumbered(const NumberedLaunch& launch) {
  const NumberedJob& job = launch.job;
  if (!isSlotCount(job.slots))
    return invalidNumbered("has rings of 1, 2, 4, 8, 16 or 32 slots, not " +
                           std::to_string(job.slots));
  if (!isRing(job.units, kUnitBytes)) return invalidNumbered("has its units on 16 bytes");
  if (!isRing(job.credits)) return invalidNumbered("has credits on 8 bytes");
  if (job.bytes > kMostNumberedBytes)
    return invalidNumbered("has at most " + std::to_string(kMostNumberedBytes) + " bytes, not " +
                           std::to_string(job.bytes));
  if (job.bytes > job.units.strideBytes / kUnitBytes * kUnitPayloadBytes)
    return invalidNumbered("fits into a slot of " + std::to_string(job.units.strideBytes) +
                           " bytes, not " + std::to_string(job.bytes) + " bytes");
  if (job.local == nullptr && job.bytes != 0) return invalidNumbered("copies from or to memory");
  if (job.advance != 0 && job.cursorWord == nullptr)
    return invalidNumbered("advances a cursor word");
  return Status::ok();
}

}  // namespace peerlane::kernel
