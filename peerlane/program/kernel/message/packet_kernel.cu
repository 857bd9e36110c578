// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/kernel/message/packet_kernel.h"

#include <cuda_runtime.h>

#include "peerlane/program/kernel/launch/kernel_launch.h"
#include "peerlane/program/kernel/launch/launch_overlap_device.h"
#include "peerlane/program/kernel/launch/release_device.h"
#include "peerlane/program/words/copy_device.h"
#include "peerlane/program/words/word_device.h"

namespace peerlane::kernel {
namespace {

constexpr uint32_t kMostThreads = kMostPacketMessageBytes / kPacketPayloadBytes;

struct Packet {
  uint64_t bytes;
  uint64_t tag;
};

// One access of 16 bytes, which no thread sees in part (PTX: a scalar of type b128).
__device__ __forceinline__ void storePacket(std::byte* to, const Packet& packet) {
  asm volatile(
      "{\n .reg .b128 u;\n mov.b128 u, {%1, %2};\n st.relaxed.sys.global.b128 [%0], u;\n}" ::"l"(
          to),
      "l"(packet.bytes), "l"(packet.tag)
      : "memory");
}

__device__ __forceinline__ Packet loadPacket(const std::byte* from) {
  Packet packet;
  asm volatile("{\n .reg .b128 u;\n ld.relaxed.sys.global.b128 u, [%2];\n mov.b128 {%0, %1}, u;\n}"
               : "=l"(packet.bytes), "=l"(packet.tag)
               : "l"(from)
               : "memory");
  return packet;
}

// This thread's 8 bytes of the message, fewer at its end.
__device__ __forceinline__ uint64_t loadPayload(const PacketJob& job) {
  const uint32_t at = threadIdx.x * kPacketPayloadBytes;
  if (at >= job.bytes) return 0;
  const std::byte* const from = job.local + at;
  const uint32_t count =
      job.bytes - at < kPacketPayloadBytes ? job.bytes - at : kPacketPayloadBytes;
  if (count == kPacketPayloadBytes && reinterpret_cast<uint64_t>(from) % kPacketPayloadBytes == 0)
    return device::loadWordRelaxed(reinterpret_cast<const uint64_t*>(from));
  uint64_t value = 0;
  for (uint32_t i = 0; i < count; ++i)
    value |= static_cast<uint64_t>(reinterpret_cast<const volatile uint8_t*>(from)[i]) << (8 * i);
  return value;
}

__device__ __forceinline__ void storePayload(const PacketJob& job, uint64_t value) {
  const uint32_t at = threadIdx.x * kPacketPayloadBytes;
  if (at >= job.bytes) return;
  std::byte* const to = job.local + at;
  const uint32_t count =
      job.bytes - at < kPacketPayloadBytes ? job.bytes - at : kPacketPayloadBytes;
  if (count == kPacketPayloadBytes && reinterpret_cast<uint64_t>(to) % kPacketPayloadBytes == 0) {
    *reinterpret_cast<uint64_t*>(to) = value;
    return;
  }
  for (uint32_t i = 0; i < count; ++i)
    reinterpret_cast<uint8_t*>(to)[i] = static_cast<uint8_t>(value >> (8 * i));
}

__device__ __forceinline__ bool hasPacket(const PacketJob& job) {
  return threadIdx.x == 0 || threadIdx.x * kPacketPayloadBytes < job.bytes;
}

__device__ __forceinline__ std::byte* slotOf(const PacketJob& job, const RingWord& ring,
                                             uint64_t cursor) {
  return ring.base + (cursor & (job.slots - 1u)) * ring.strideBytes;
}

__device__ __forceinline__ uint64_t tagOf(const PacketJob& job, uint64_t cursor) {
  return packetTag(cursor + static_cast<int64_t>(job.packets.delta), job.bytes);
}

// Ends the launch; one thread calls it, after a barrier.
__device__ __forceinline__ void end(const PacketJob& job, uint64_t counted, bool released) {
  if (released) tellReleased(job);
  if (job.advance != 0) *job.cursorWord = counted + job.advance;
  if (job.completion == nullptr) return;
  // The thread that reads the completion may reuse or free the memory.
  device::fenceSystem();
  device::storeWordRelaxed(job.completion, job.completionValue);
}

__global__ void __launch_bounds__(kMostThreads, 1)
    packetSend(const __grid_constant__ PacketJob job) {
  const uint32_t lane = device::laneOfWarp();
  awaitKernelBefore();
  // All loads that depend on no other are issued at once: the credits of every slot, because the
  // cursor is still on its way.
  const uint64_t counted = job.cursorWord == nullptr ? 0 : device::loadWordRelaxed(job.cursorWord);
  const bool sawEnd = isEnded(job);
  const uint64_t credit = lane >= job.slots
                              ? 0
                              : device::loadWordRelaxed(reinterpret_cast<const uint64_t*>(
                                    job.credits.base + uint64_t{lane} * job.credits.strideBytes));
  const uint64_t payload = loadPayload(job);
  const uint64_t cursor = job.cursor + counted;
  const uint64_t wanted = cursor + static_cast<int64_t>(job.credits.delta);
  const uint64_t seen =
      __shfl_sync(device::kAllLanes, credit, static_cast<int>(cursor & (job.slots - 1u)));
  const bool ended = __any_sync(device::kAllLanes, sawEnd) != 0;
  bool live = !ended && !device::isPoisonWord(seen) && device::isAtLeast(seen, wanted);
  if (!live && !ended) {
    const auto* const word = reinterpret_cast<const uint64_t*>(slotOf(job, job.credits, cursor));
    live = __all_sync(device::kAllLanes,
                      device::waitWord(word, wanted, job.abort) == device::Waited::kSatisfied) != 0;
  }
  letKernelBehindBegin();
  // No warp may send where another has been released.
  live = __syncthreads_and(live) != 0;
  if (live && hasPacket(job))
    storePacket(slotOf(job, job.packets, cursor) + threadIdx.x * kPacketBytes,
                {payload, tagOf(job, cursor)});
  if (job.completion != nullptr) __syncthreads();
  if (threadIdx.x == 0) end(job, counted, !live);
}

// How a look for a packet ended; the later, the worse.
enum Arrived : uint32_t {
  kNotYet,
  kHere,
  kOther,  // the same message, but longer or shorter
  kNever,
};

__device__ __forceinline__ bool isSameNumber(uint64_t tag, uint64_t other) {
  return ((tag ^ other) & ((uint64_t{1} << kTagLengthBit) - 1)) == 0;
}

__device__ __forceinline__ Arrived look(const std::byte* at, uint64_t tag, Packet& packet) {
  packet = loadPacket(at);
  if (packet.tag == tag) return kHere;
  if (device::isPoisonWord(packet.tag)) return kNever;
  return isSameNumber(packet.tag, tag) ? kOther : kNotYet;
}

__device__ __forceinline__ bool isAborted(const PacketJob& job, uint32_t polls) {
  return polls % device::kPollsPerAbortLook == 0 && job.abort != nullptr &&
         device::loadWordRelaxed(job.abort) != 0;
}

// Waits until all packets of a message of another length are there: a receiver that gave the slot
// back earlier would let the peer write into it while packets of this message are on their way. One
// thread calls it.
__device__ bool awaitOther(const PacketJob& job, const std::byte* slot, uint64_t tag) {
  uint64_t packets = 1;
  for (uint64_t i = 0; i < packets; ++i) {
    Packet packet = loadPacket(slot + i * kPacketBytes);
    for (uint32_t polls = 1; !isSameNumber(packet.tag, tag); ++polls) {
      if (device::isPoisonWord(packet.tag) || isAborted(job, polls)) return false;
      packet = loadPacket(slot + i * kPacketBytes);
    }
    if (i == 0)
      packets = ((packet.tag >> kTagLengthBit) + kPacketPayloadBytes - 1) / kPacketPayloadBytes;
  }
  return true;
}

__global__ void __launch_bounds__(kMostThreads, 1)
    packetRecv(const __grid_constant__ PacketJob job) {
  // The peer writes the packets, so reading them does not depend on the kernel before; reading the
  // cursor does.
  if (job.cursorWord != nullptr) awaitKernelBefore();
  const uint64_t counted = job.cursorWord == nullptr ? 0 : device::loadWordRelaxed(job.cursorWord);
  const uint64_t cursor = job.cursor + counted;
  const std::byte* const slot = slotOf(job, job.packets, cursor);
  const uint64_t tag = tagOf(job, cursor);
  // A shorter message never fills the packets of some warps, but every message has the first
  // packet, so one lane of each warp looks at that as well.
  const bool looksAtFirst = threadIdx.x >= device::kWarpLanes && device::laneOfWarp() == 0;
  Packet packet{};
  uint32_t arrived = hasPacket(job) ? kNotYet : kHere;
  for (uint32_t polls = 1;; ++polls) {
    uint32_t ended = kNotYet;
    if (arrived == kNotYet) arrived = look(slot + threadIdx.x * kPacketBytes, tag, packet);
    if (arrived > kHere) ended = arrived;
    if (looksAtFirst) {
      Packet first{};
      const uint32_t seen = look(slot, tag, first);
      if (seen > kHere) ended = seen;
    }
    if (isAborted(job, polls)) ended = kNever;
    ended = __reduce_max_sync(device::kAllLanes, ended);
    if (ended != kNotYet) {
      arrived = ended;
      break;
    }
    if (__all_sync(device::kAllLanes, arrived == kHere) != 0) break;
  }
  letKernelBehindBegin();
  if (job.cursorWord == nullptr) awaitKernelBefore();
  const bool whole = __syncthreads_and(arrived == kHere) != 0;
  const bool isAlive = __syncthreads_and(arrived != kNever) != 0;
  if (whole) storePayload(job, packet.bytes);
  if (job.completion != nullptr) __syncthreads();
  __syncwarp();
  if (threadIdx.x != 0) return;
  bool live = isAlive;
  if (live && !whole) {
    if (job.fault != nullptr) device::storeWordRelaxed(job.fault, job.faultValue);
    live = awaitOther(job, slot, tag);
  }
  // All threads have read their packets, so the peer may write them again.
  if (live)
    device::storeWordRelaxed(reinterpret_cast<uint64_t*>(slotOf(job, job.credits, cursor)),
                             cursor + static_cast<int64_t>(job.credits.delta));
  end(job, counted, !isAlive);
}

const void* kernelFor(bool isSend) {
  return isSend ? reinterpret_cast<const void*>(&packetSend)
                : reinterpret_cast<const void*>(&packetRecv);
}

}  // namespace

Status loadPacketKernels() {
  for (const bool isSend : {true, false})
    PEERLANE_RETURN_IF_ERROR(loadKernel(kernelFor(isSend), "a kernel of messages in LL packets"));
  return Status::ok();
}

Status launchPackets(const PacketLaunch& launch) {
  PEERLANE_RETURN_IF_ERROR(checkPackets(launch));
  const uint32_t packets = (launch.job.bytes + kPacketPayloadBytes - 1) / kPacketPayloadBytes;
  PacketJob job = launch.job;
  return launchKernel(
      {.kernel = kernelFor(launch.isSend),
       .ctas = 1,
       .threads = packets <= device::kWarpLanes ? device::kWarpLanes : (packets + 31) / 32 * 32,
       .overlapsEnd = launch.overlapsEnd,
       .stream = launch.stream},
      &job, "launching a kernel of a message in LL packets");
}

}  // namespace peerlane::kernel
