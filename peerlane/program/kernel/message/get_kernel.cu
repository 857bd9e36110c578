// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/kernel/message/get_kernel.h"

#include "peerlane/program/kernel/launch/kernel_launch.h"
#include "peerlane/program/kernel/launch/launch_overlap_device.h"
#include "peerlane/program/kernel/launch/release_device.h"
#include "peerlane/program/kernel/message/named_copy_device.h"

namespace peerlane::kernel {
namespace {

template <NamedPart kPart>
__global__ void __launch_bounds__(kNamedThreads, 1) getKernel(const __grid_constant__ GetJob job) {
  awaitKernelBefore();
  const uint64_t counted = job.cursorWord == nullptr ? 0 : device::loadWordRelaxed(job.cursorWord);
  const uint64_t cursor = job.cursor + counted;
  PutPlace place;
  if constexpr (kPart == NamedPart::kCopy) {
    place = *job.place;
  } else {
    __shared__ PutPlace found;
    if (threadIdx.x < device::kWarpLanes) {
      const PutPlace mine = findNamed(job, cursor);
      if (threadIdx.x == 0) {
        if constexpr (kPart == NamedPart::kFind)
          *job.place = mine;
        else
          found = mine;
      }
    }
    if constexpr (kPart == NamedPart::kFind) {
      letKernelBehindBegin();
      return;
    }
    __syncthreads();
    place = found;
  }
  letKernelBehindBegin();
  if (place.verdict == PutPlace::kGo)
    copyShare(reinterpret_cast<const std::byte*>(place.address), job.to, job.bytes);
  // Each thread stored the bytes that it had read before the barrier, so its reads had ended by
  // then.
  __syncthreads();
  if (threadIdx.x != 0 || !isLastBlock(job.arrivals)) return;
  if (job.advance != 0) *job.cursorWord = counted + job.advance;
  if (place.verdict != PutPlace::kReleased) {
    if (place.verdict == PutPlace::kGo)
      device::storeWordRelaxed(wordAt(slotOf(job, job.accept, cursor)),
                               numberOf(job.accept, cursor));
    device::fenceSystem();
    device::storeWordRelaxed(wordAt(slotOf(job, job.tell, cursor)), numberOf(job.tell, cursor));
  } else {
    tellReleased(job);
  }
  if (job.completion == nullptr) return;
  device::fenceSystem();  // its reader may free the memory of the words
  device::storeWordRelaxed(job.completion, job.completionValue);
}

__global__ void getEndKernel(const __grid_constant__ GetEndJob job) {
  awaitKernelBefore();
  const uint64_t counted = job.cursorWord == nullptr ? 0 : device::loadWordRelaxed(job.cursorWord);
  const uint64_t cursor = job.cursor + counted;
  const bool released =
      device::waitWord(wordAt(slotOf(job, job.wait, cursor)), numberOf(job.wait, cursor),
                       job.abort) == device::Waited::kReleased;
  letKernelBehindBegin();
  if (!released && job.fault != nullptr &&
      !device::isAtLeast(device::loadWordRelaxed(wordAt(slotOf(job, job.accepted, cursor))),
                         numberOf(job.accepted, cursor)))
    device::storeWordRelaxed(job.fault, job.faultValue);
  if (released) tellReleased(job);
  if (job.advance != 0) *job.cursorWord = counted + job.advance;
  if (job.completion == nullptr) return;
  device::fenceSystem();
  device::storeWordRelaxed(job.completion, job.completionValue);
}

const void* getKernelFor(NamedPart part) {
  switch (part) {
    case NamedPart::kFind: return reinterpret_cast<const void*>(&getKernel<NamedPart::kFind>);
    case NamedPart::kCopy: return reinterpret_cast<const void*>(&getKernel<NamedPart::kCopy>);
    case NamedPart::kAll: break;
  }
  return reinterpret_cast<const void*>(&getKernel<NamedPart::kAll>);
}

}  // namespace

Status loadGetKernels() {
  for (const NamedPart part : {NamedPart::kAll, NamedPart::kFind, NamedPart::kCopy})
    PEERLANE_RETURN_IF_ERROR(loadKernel(getKernelFor(part), "a get kernel"));
  PEERLANE_RETURN_IF_ERROR(
      loadKernel(reinterpret_cast<const void*>(&getEndKernel), "the kernel of a get's end"));
  return NamedCtas::find();
}

Status launchGet(const GetLaunch& launch) {
  PEERLANE_RETURN_IF_ERROR(checkGet(launch));
  GetJob job = launch.job;
  KernelLaunch one{.kernel = getKernelFor(NamedPart::kAll),
                   .ctas = 1,
                   .threads = namedThreads(job.bytes),
                   .overlapsEnd = launch.overlapsEnd,
                   .stream = launch.stream};
  if (job.bytes <= kAlonePutBytes) return launchKernel(one, &job, "launching a get kernel");
  one.kernel = getKernelFor(NamedPart::kFind);
  one.threads = device::kWarpLanes;
  PEERLANE_RETURN_IF_ERROR(launchKernel(one, &job, "launching a get kernel"));
  one.kernel = getKernelFor(NamedPart::kCopy);
  one.ctas = NamedCtas::of(job.bytes, launch.ctas);
  one.threads = kNamedThreads;
  return launchKernel(one, &job, "launching a get kernel");
}

Status launchGetEnd(const GetEndLaunch& launch) {
  PEERLANE_RETURN_IF_ERROR(checkGetEnd(launch));
  GetEndJob job = launch.job;
  return launchKernel({.kernel = reinterpret_cast<const void*>(&getEndKernel),
                       .ctas = 1,
                       .threads = 1,
                       .overlapsEnd = launch.overlapsEnd,
                       .stream = launch.stream},
                      &job, "launching the kernel of a get's end");
}

}  // namespace peerlane::kernel
