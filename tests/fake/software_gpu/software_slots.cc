// SPDX-License-Identifier: Apache-2.0
//
// The ring-slot kernel, packet kernels and the put kernel on the software GPU: one thread does what
// their headers promise. Where a contract leaves an order open, the less likely one is taken.
#include <vector>

#include "peerlane/program/kernel/message/packet_kernel.h"
#include "peerlane/program/kernel/message/put_kernel.h"
#include "peerlane/program/kernel/message/ring_slot_kernel.h"
#include "peerlane/program/model/op.h"
#include "tests/fake/software_gpu/software_named.h"

// For tests that count.
extern "C" unsigned peerlaneSoftwareWork() {
  return peerlane::kernel::ownWork;
}

namespace peerlane::kernel {
namespace {

void runRingSlot(const RingSlotJob& job, int device) {
  Run run(device, "ring slot");
  const uint64_t counted = job.cursorWord == nullptr ? 0 : run.load(job.cursorWord);
  const uint64_t cursor = job.cursor + counted;
  const Slot awaited = slotOf(job.wait, job.slots, cursor);
  const Slot told = slotOf(job.tell, job.slots, cursor);
  const bool live = !(job.tellsPeer && isEnded(run, job)) &&
                    run.waitWord(awaited.word(), awaited.number, job.abort);
  const bool wrong =
      live && job.checkAt != 0 && run.load(awaited.word(job.checkAt)) != job.expected;
  if (wrong && job.fault != nullptr) run.store(job.fault, job.faultValue);
  if (job.advance != 0) run.store(job.cursorWord, counted + job.advance);
  if (live) {
    for (uint32_t i = job.valueCount; i-- > 0;)
      run.store(told.word(job.valuesAt + 8 * i), job.values[i]);
    run.store(told.word(), told.number);
  } else {
    tellReleased(run, job);
  }
  if (job.completion != nullptr) run.store(job.completion, job.completionValue);
}

// --- Messages in LL packets ---

class PacketRun {
 public:
  PacketRun(const PacketLaunch& launch, int device)
      : job_(launch.job), isSend_(launch.isSend), run_(device, "packets") {}

  void operator()() {
    const uint64_t counted = job_.cursorWord == nullptr ? 0 : run_.load(job_.cursorWord);
    const uint64_t cursor = job_.cursor + counted;
    const Slot packets = slotOf(job_.packets, job_.slots, cursor);
    const Slot credit = slotOf(job_.credits, job_.slots, cursor);
    const bool live = isSend_ ? send(packets, credit) : receive(packets, credit);
    if (!live) tellReleased(run_, job_);
    if (job_.advance != 0) run_.store(job_.cursorWord, counted + job_.advance);
    if (job_.completion != nullptr) run_.store(job_.completion, job_.completionValue);
  }

 private:
  static uint64_t packetsOf(uint64_t bytes) {
    return bytes == 0 ? 1 : (bytes + kPacketPayloadBytes - 1) / kPacketPayloadBytes;
  }
  static uint64_t* tagAt(const Slot& slot, uint64_t packet) {
    return slot.word(static_cast<uint32_t>(packet * kPacketBytes + kPacketPayloadBytes));
  }
  static uint64_t numberOf(uint64_t tag) { return tag & ((uint64_t{1} << kTagLengthBit) - 1); }

  // The source is read before the wait, and the last packet is the first. False: released.
  bool send(const Slot& packets, const Slot& credit) {
    std::vector<uint64_t> held(packetsOf(job_.bytes));
    if (job_.bytes != 0 && run_.reaches(job_.local, job_.bytes, "a source"))
      softgpu::moveBytes(held.data(), job_.local, job_.bytes);
    if (isEnded(run_, job_)) return false;
    if (!run_.waitWord(credit.word(), credit.number, job_.abort)) return false;
    for (uint64_t i = held.size(); i-- > 0;) {
      run_.store(packets.word(static_cast<uint32_t>(i * kPacketBytes)), held[i]);
      run_.store(tagAt(packets, i), packetTag(packets.number, job_.bytes));
    }
    return true;
  }
  // 0: released.
  uint64_t await(const Slot& packets, uint64_t packet) {
    const uint64_t* const word = tagAt(packets, packet);
    for (softgpu::PollPause pause; !run_.failed(); pause.wait()) {
      const uint64_t tag = run_.load(word);
      if (tag >> 62 == 1) return 0;
      if (numberOf(tag) == packets.number) return tag;
      if (run_.isAborted(job_.abort)) return 0;
    }
    return 0;
  }
  bool receive(const Slot& packets, const Slot& credit) {
    std::vector<uint64_t> held;
    uint64_t bytes = 0;
    for (uint64_t i = 0; i == 0 || i < packetsOf(bytes); ++i) {
      const uint64_t tag = await(packets, i);
      if (tag == 0) return false;
      if (i == 0) bytes = tag >> kTagLengthBit;
      held.push_back(run_.load(packets.word(static_cast<uint32_t>(i * kPacketBytes))));
    }
    if (bytes != job_.bytes) {
      if (job_.fault != nullptr) run_.store(job_.fault, job_.faultValue);
    } else if (bytes != 0 && run_.reaches(job_.local, bytes, "a destination")) {
      softgpu::moveBytes(job_.local, held.data(), bytes);
    }
    run_.store(credit.word(), credit.number);
    return true;
  }

  const PacketJob job_;
  const bool isSend_;
  Run run_;
};

// --- Puts ---

void copyThere(Run& run, const PutJob& job, const PutPlace& place) {
  uint64_t counted = 0;
  const uint64_t cursor = cursorOf(run, job, counted);
  if (place.verdict == PutPlace::kGo)
    run.copy(reinterpret_cast<void*>(place.address), job.from, job.bytes);
  if (job.advance != 0) run.store(job.cursorWord, counted + job.advance);
  if (place.verdict != PutPlace::kReleased) {
    const Slot told = slotOf(job.tell, job.slots, cursor);
    run.store(told.word(job.valueAt), job.value);
    run.store(told.word(), told.number);
  } else {
    tellReleased(run, job);
  }
  if (job.completion != nullptr) run.store(job.completion, job.completionValue);
}

}  // namespace

Status loadRingSlotKernels() {
  return load(kRingSlotKernels);
}
Status loadPacketKernels() {
  return load(kPacketKernels);
}
Status loadPutKernels() {
  return load(kPutKernels);
}

Status launchRingSlot(const RingSlotLaunch& launch) {
  const OwnWork own;
  PEERLANE_RETURN_IF_ERROR(checkRingSlot(launch));
  softgpu::loadLazily(loadedHere(kRingSlotKernels).exchange(true));
  return launched(softgpu::launchKernel(
                      launch.stream, [job = launch.job](int device) { runRingSlot(job, device); }),
                  "launching a ring-slot kernel");
}

Status launchPackets(const PacketLaunch& launch) {
  const OwnWork own;
  PEERLANE_RETURN_IF_ERROR(checkPackets(launch));
  softgpu::loadLazily(loadedHere(kPacketKernels).exchange(true));
  return launched(
      softgpu::launchKernel(launch.stream, [launch](int device) { PacketRun(launch, device)(); }),
      "launching a kernel of a message in LL packets");
}

Status launchPut(const PutLaunch& launch) {
  const OwnWork own;
  PEERLANE_RETURN_IF_ERROR(checkPut(launch));
  softgpu::loadLazily(loadedHere(kPutKernels).exchange(true));
  return launchNamed(launch.stream, launch.job, "put", copyThere);
}

}  // namespace peerlane::kernel
