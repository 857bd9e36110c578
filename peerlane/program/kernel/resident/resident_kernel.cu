// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/kernel/resident/resident_kernel.h"

#include "peerlane/program/kernel/launch/kernel_launch.h"
#include "peerlane/program/words/team.h"

namespace peerlane::kernel {
namespace {

// Eight blocks of so many threads fill a link (docs/performance.md).
constexpr uint32_t kThreads = 512;

__global__ void __launch_bounds__(kThreads)
    residentKernel(const __grid_constant__ port::ResidentJob job) {
  __shared__ port::ResidentRequest shared;
  port::residentBlock(port::ThisBlock{}, job, blockIdx.x, gridDim.x, shared);
}

}  // namespace

Status loadResidentKernel() {
  return loadKernel(reinterpret_cast<const void*>(&residentKernel), "the resident kernel");
}

Status launchResident(const ResidentLaunch& launch) {
  port::ResidentJob job = launch.job;
  return launchKernel({.kernel = reinterpret_cast<const void*>(&residentKernel),
                       .ctas = launch.blocks,
                       .threads = kThreads,
                       .stream = launch.stream},
                      &job, "launching the resident kernel");
}

}  // namespace peerlane::kernel
