// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "peerlane/program/kernel/message/packet_kernel.h"

namespace peerlane::kernel {
namespace {

Status invalidPackets(const std::string& what) {
  return Status(Code::kInvalidArgument, "a kernel of a message in LL packets " + what);
}

}  // namespace

Status checkPackets(const PacketLaunch& launch) {
  const PacketJob& job = launch.job;
  if (!isSlotCount(job.slots))
    return invalidPackets("has rings of 1, 2, 4, 8, 16 or 32 slots, not " +
                          std::to_string(job.slots));
  if (!isRing(job.packets, kPacketBytes)) return invalidPackets("has its packets on 16 bytes");
  if (!isRing(job.credits)) return invalidPackets("has credits on 8 bytes");
  if (job.bytes > kMostPacketMessageBytes)
    return invalidPackets("has at most " + std::to_string(kMostPacketMessageBytes) +
                          " bytes, not " + std::to_string(job.bytes));
  if (job.bytes > job.packets.strideBytes / kPacketBytes * kPacketPayloadBytes)
    return invalidPackets("fits into a slot of " + std::to_string(job.packets.strideBytes) +
                          " bytes, not " + std::to_string(job.bytes) + " bytes");
  if (job.local == nullptr && job.bytes != 0) return invalidPackets("copies from or to memory");
  if (job.advance != 0 && job.cursorWord == nullptr)
    return invalidPackets("advances a cursor word");
  return Status::ok();
}

}  // namespace peerlane::kernel
