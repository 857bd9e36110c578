// SPDX-License-Identifier: Apache-2.0
//
// The turn kernel, numbered kernels and the put kernel on the software GPU: one thread does what
// their headers promise. Where a contract leaves an order open, the less likely one is taken.
#include <vector>

#include "peerlane/program/kernel/message/numbered_kernel.h"
#include "peerlane/program/kernel/message/put_kernel.h"
#include "peerlane/program/kernel/message/turn_kernel.h"
#include "peerlane/program/model/op.h"
#include "tests/fake/software_gpu/software_named.h"

// For tests that count.
extern "C" unsigned peerlaneSoftwareWork() {
  return peerlane::kernel::ownWork;
}

namespace peerlane::kernel {
namespace {

void runTurn(const TurnJob& job, int device) {
  Run run(device, "turn");
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

// --- Numbered messages ---

class NumberedRun {
 public:
  NumberedRun(const NumberedLaunch& launch, int device)
      : job_(launch.job), isSend_(launch.isSend), run_(device, "numbered") {}

  void operator()() {
    const uint64_t counted = job_.cursorWord == nullptr ? 0 : run_.load(job_.cursorWord);
    const uint64_t cursor = job_.cursor + counted;
    const Slot units = slotOf(job_.units, job_.slots, cursor);
    const Slot credit = slotOf(job_.credits, job_.slots, cursor);
    const bool live = isSend_ ? send(units, credit) : receive(units, credit);
    if (!live) tellReleased(run_, job_);
    if (job_.advance != 0) run_.store(job_.cursorWord, counted + job_.advance);
    if (job_.completion != nullptr) run_.store(job_.completion, job_.completionValue);
  }

 private:
  static uint64_t unitsOf(uint64_t bytes) {
    return bytes == 0 ? 1 : (bytes + kUnitPayloadBytes - 1) / kUnitPayloadBytes;
  }
  static uint64_t* tagAt(const Slot& slot, uint64_t unit) {
    return slot.word(static_cast<uint32_t>(unit * kUnitBytes + kUnitPayloadBytes));
  }
  static uint64_t numberOf(uint64_t tag) { return tag & ((uint64_t{1} << kTagLengthBit) - 1); }

  // The source is read before the wait, and the last unit is the first. False: released.
  bool send(const Slot& units, const Slot& credit) {
    std::vector<uint64_t> held(unitsOf(job_.bytes));
    if (job_.bytes != 0 && run_.reaches(job_.local, job_.bytes, "a source"))
      softgpu::moveBytes(held.data(), job_.local, job_.bytes);
    if (isEnded(run_, job_)) return false;
    if (!run_.waitWord(credit.word(), credit.number, job_.abort)) return false;
    for (uint64_t i = held.size(); i-- > 0;) {
      run_.store(units.word(static_cast<uint32_t>(i * kUnitBytes)), held[i]);
      run_.store(tagAt(units, i), numberedTag(units.number, job_.bytes));
    }
    return true;
  }
  // 0: released.
  uint64_t await(const Slot& units, uint64_t unit) {
    const uint64_t* const word = tagAt(units, unit);
    for (softgpu::PollPause pause; !run_.failed(); pause.wait()) {
      const uint64_t tag = run_.load(word);
      if (tag >> 62 == 1) return 0;
      if (numberOf(tag) == units.number) return tag;
      if (run_.isAborted(job_.abort)) return 0;
    }
    return 0;
  }
  bool receive(const Slot& units, const Slot& credit) {
    std::vector<uint64_t> held;
    uint64_t bytes = 0;
    for (uint64_t i = 0; i == 0 || i < unitsOf(bytes); ++i) {
      const uint64_t tag = await(units, i);
      if (tag == 0) return false;
      if (i == 0) bytes = tag >> kTagLengthBit;
      held.push_back(run_.load(units.word(static_cast<uint32_t>(i * kUnitBytes))));
    }
    if (bytes != job_.bytes) {
      if (job_.fault != nullptr) run_.store(job_.fault, job_.faultValue);
    } else if (bytes != 0 && run_.reaches(job_.local, bytes, "a destination")) {
      softgpu::moveBytes(job_.local, held.data(), bytes);
    }
    run_.store(credit.word(), credit.number);
    return true;
  }

  const NumberedJob job_;
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

Status loadTurnKernels() {
  return load(kTurnKernels);
}
Status loadNumberedKernels() {
  return load(kNumberedKernels);
}
Status loadPutKernels() {
  return load(kPutKernels);
}

Status launchTurn(const TurnLaunch& launch) {
  const OwnWork own;
  PEERLANE_RETURN_IF_ERROR(checkTurn(launch));
  softgpu::loadLazily(loadedHere(kTurnKernels).exchange(true));
  return launched(softgpu::launchKernel(launch.stream,
                                        [job = launch.job](int device) { runTurn(job, device); }),
                  "launching a turn kernel");
}

Status launchNumbered(const NumberedLaunch& launch) {
  const OwnWork own;
  PEERLANE_RETURN_IF_ERROR(checkNumbered(launch));
  softgpu::loadLazily(loadedHere(kNumberedKernels).exchange(true));
  return launched(
      softgpu::launchKernel(launch.stream, [launch](int device) { NumberedRun(launch, device)(); }),
      "launching a kernel of a numbered message");
}

Status launchPut(const PutLaunch& launch) {
  const OwnWork own;
  PEERLANE_RETURN_IF_ERROR(checkPut(launch));
  softgpu::loadLazily(loadedHere(kPutKernels).exchange(true));
  return launchNamed(launch.stream, launch.job, "put", copyThere);
}

}  // namespace peerlane::kernel
