// SPDX-License-Identifier: Apache-2.0
//
// The get kernels on the software GPU: one thread does what their header promises.
#include "peerlane/program/kernel/message/get_kernel.h"
#include "peerlane/program/model/op.h"
#include "tests/fake/software_gpu/software_named.h"

namespace peerlane::kernel {
namespace {

void fetch(Run& run, const GetJob& job, const PutPlace& place) {
  uint64_t counted = 0;
  const uint64_t cursor = cursorOf(run, job, counted);
  if (place.verdict == PutPlace::kGo)
    run.copy(job.to, reinterpret_cast<const void*>(place.address), job.bytes);
  if (job.advance != 0) run.store(job.cursorWord, counted + job.advance);
  if (place.verdict != PutPlace::kReleased) {
    const auto tell = [&](const RingWord& word) {
      const Slot slot = slotOf(word, job.slots, cursor);
      run.store(slot.word(), slot.number);
    };
    if (place.verdict == PutPlace::kGo) tell(job.accept);
    tell(job.tell);
  } else {
    tellReleased(run, job);
  }
  if (job.completion != nullptr) run.store(job.completion, job.completionValue);
}

void end(Run& run, const GetEndJob& job) {
  uint64_t counted = 0;
  const uint64_t cursor = cursorOf(run, job, counted);
  const Slot awaited = slotOf(job.wait, job.slots, cursor);
  if (run.waitWord(awaited.word(), awaited.number, job.abort)) {
    const Slot accepted = slotOf(job.accepted, job.slots, cursor);
    const bool isAccepted = static_cast<int64_t>(run.load(accepted.word()) - accepted.number) >= 0;
    if (!isAccepted && job.fault != nullptr) run.store(job.fault, job.faultValue);
  } else {
    tellReleased(run, job);
  }
  if (job.advance != 0) run.store(job.cursorWord, counted + job.advance);
  if (job.completion != nullptr) run.store(job.completion, job.completionValue);
}

}  // namespace

Status loadGetKernels() {
  return load(kGetKernels);
}

Status launchGet(const GetLaunch& launch) {
  const OwnWork own;
  PEERLANE_RETURN_IF_ERROR(checkGet(launch));
  softgpu::loadLazily(loadedHere(kGetKernels).exchange(true));
  return launchNamed(launch.stream, launch.job, "get", fetch);
}

Status launchGetEnd(const GetEndLaunch& launch) {
  const OwnWork own;
  PEERLANE_RETURN_IF_ERROR(checkGetEnd(launch));
  softgpu::loadLazily(loadedHere(kGetKernels).exchange(true));
  return launched(softgpu::launchKernel(launch.stream,
                                        [job = launch.job](int device) {
                                          Run run(device, "get end");
                                          end(run, job);
                                        }),
                  "launching the kernel of a get's end");
}

}  // namespace peerlane::kernel
