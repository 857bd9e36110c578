// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/kernel/message/put_kernel.h"

#include "peerlane/program/kernel/launch/kernel_launch.h"
#include "peerlane/program/kernel/launch/launch_overlap_device.h"
#include "peerlane/program/kernel/launch/release_device.h"
#include "peerlane/program/kernel/message/named_copy_device.h"

namespace peerlane::kernel {
namespace {

template <NamedPart kPart>
__global__ void __launch_bounds__(kNamedThreads, 1) putKernel(const __grid_constant__ PutJob job) {
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
    copyShare(job.from, reinterpret_cast<std::byte*>(place.address), job.bytes);
  __syncthreads();
  if (threadIdx.x == 0 && isLastBlock(job.arrivals)) tellPut(job, counted, cursor, place.verdict);
}

const void* putKernelFor(NamedPart part) {
  switch (part) {
    case NamedPart::kFind: return reinterpret_cast<const void*>(&putKernel<NamedPart::kFind>);
    case NamedPart::kCopy: return reinterpret_cast<const void*>(&putKernel<NamedPart::kCopy>);
    case NamedPart::kAll: break;
  }
  return reinterpret_cast<const void*>(&putKernel<NamedPart::kAll>);
}

}  // namespace

Status loadPutKernels() {
  for (const NamedPart part : {NamedPart::kAll, NamedPart::kFind, NamedPart::kCopy})
    PEERLANE_RETURN_IF_ERROR(loadKernel(putKernelFor(part), "a put kernel"));
  return NamedCtas::find();
}

Status launchPut(const PutLaunch& launch) {
  PEERLANE_RETURN_IF_ERROR(checkPut(launch));
  PutJob job = launch.job;
  KernelLaunch one{.kernel = putKernelFor(NamedPart::kAll),
                   .ctas = 1,
                   .threads = namedThreads(job.bytes),
                   .overlapsEnd = launch.overlapsEnd,
                   .stream = launch.stream};
  if (job.bytes <= kAlonePutBytes) return launchKernel(one, &job, "launching a put kernel");
  one.kernel = putKernelFor(NamedPart::kFind);
  one.threads = device::kWarpLanes;
  PEERLANE_RETURN_IF_ERROR(launchKernel(one, &job, "launching a put kernel"));
  one.kernel = putKernelFor(NamedPart::kCopy);
  one.ctas = NamedCtas::of(job.bytes, launch.ctas);
  one.threads = kNamedThreads;
  return launchKernel(one, &job, "launching a put kernel");
}

}  // namespace peerlane::kernel
