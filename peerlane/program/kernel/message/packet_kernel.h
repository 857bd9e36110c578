// SPDX-License-Identifier: Apache-2.0
//
// Packet kernels: the two sides of an eager message of at most 1 KiB whose bytes travel in LL
// packets (program/model/op.h); one launch on each side. A packet is 16 bytes in one store: 8 bytes
// of the message, and a tag, which has the number of the message and, from bit 48 on, its length.
// The receiver polls the packets themselves. So the sender needs no fence and no word after the
// bytes, and the receiver need not read the bytes after a word: the message crosses the link once,
// where a word after a fence needs three crossings. A message of no bytes is one packet. Any thread
// may call; the launch goes to the caller's current device, which must be the stream's. Usable
// under stream capture.
//
// The accesses to memory for which a message of 8 bytes waits, one after another (L: this GPU's
// memory, P: the peer's memory):
//   send     L: credit, source and cursor, at once   P: the packet
//   receive  L: the packet   L: the destination   P: credit, for which no thread waits
// and after each, if the launch has a completion word, a fence and that word in the host's memory.
// The kernel reads only the abort word over PCIe, after each 64 polls.
#pragma once

#include <cstddef>
#include <cstdint>

#include "peerlane/core/device_code.h"
#include "peerlane/core/status.h"
#include "peerlane/program/kernel/message/ring_slot_kernel.h"
#include "peerlane/program/model/op.h"

namespace peerlane::kernel {

inline constexpr uint32_t kMostPacketMessageBytes = 1024;
inline constexpr uint32_t kTagLengthBit = 48;

// The tag of every packet of a message of `bytes` bytes that has the number `number`.
PEERLANE_DEVICE constexpr uint64_t packetTag(uint64_t number, uint64_t bytes) {
  return number | bytes << kTagLengthBit;
}

struct PacketJob {
  uint64_t cursor = 0;  // n; with a cursor word, n is that word and this
  // Memory of the device; grows by `advance` once per execution.
  uint64_t* cursorWord = nullptr;
  const uint64_t* abort = nullptr;  // pinned host memory, or null
  uint64_t* fault = nullptr;  // stored where a receiver's length differs; kReleasedFault; or null
  // As RingSlotJob's; a receiver does not look at it, because the message that it takes out has
  // been sent.
  uint64_t* ended = nullptr;
  uint64_t* completion = nullptr;  // stored last, however the launch ended; or null
  uint64_t completionValue = 0;
  std::byte* local = nullptr;  // the source of a send, the destination of a receive
  // Slots of packets; `delta`: n + delta is the number of message n.
  RingWord packets;
  // Words: the sender waits for n + delta; the receiver stores it when it has all packets.
  RingWord credits;
  uint32_t faultValue = 0;
  uint32_t advance = 0;
  uint16_t bytes = 0;  // at most kMostPacketMessageBytes
  uint8_t slots = 0;   // a power of two, at most kMostRingSlots
};
static_assert(sizeof(PacketJob) <= 128, "parameters are copied with every launch");

struct PacketLaunch {
  PacketJob job;
  bool isSend = false;
  bool overlapsEnd = false;  // as RingSlotLaunch's
  void* stream = nullptr;    // cudaStream_t
};

// Makes the kernels resident on the current device, as loadCopyKernels() does.
Status loadPacketKernels();

// An abort word that is not 0, or poison, releases a wait: then the kernel only advances the cursor
// and stores the completion. If the lengths differ, the receiver copies nothing out and gives the
// slot back. Errors: InvalidArgument, System (the launch failed).
Status launchPackets(const PacketLaunch& launch);

// The checks of a launch that are the same for every device. Errors: InvalidArgument.
Status checkPackets(const PacketLaunch& launch);

}  // namespace peerlane::kernel
