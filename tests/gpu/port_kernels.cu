// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/port_kernels.h"

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

#include "tests/gpu/port_bodies.h"

namespace peerlane::gputest {
namespace {

constexpr uint32_t kThreads = 512;

template <class Team>
__global__ void __launch_bounds__(kThreads) portKernel(PortBody body, PortJob job) {
  const uint32_t callers = Team::kKind == port::TeamKind::kThread ? 1
                           : Team::kKind == port::TeamKind::kWarp ? 32
                                                                  : kThreads;
  PortPlayer<Team, port::ThisBlock> player(Team{}, threadIdx.x < callers, port::ThisBlock{},
                                           blockIdx.x, gridDim.x, job);
  player.play(body);
}

__global__ void lateKernel(uint64_t* word) {
  if (word != nullptr) *word = 1;
}

__global__ void __launch_bounds__(kThreads) residentRunKernel(ResidentRun run) {
  __shared__ port::ResidentRequest shared;
  if (blockIdx.x < run.blocks) {
    port::residentBlock(port::ThisBlock{}, run.job, blockIdx.x, run.blocks, shared);
    return;
  }
  if (threadIdx.x >= kResidentAskers) return;
  const uint64_t at = threadIdx.x * run.bytes;
  uint64_t end = 0, asked = 0;
  while (port::loadAcquire(run.job.left) < run.job.launch &&
         (port::loadAcquire(&run.job.state->head) & port::kOpenBit) == 0) {
  }
  while (port::pushResident({run.job.state},
                            {run.to + at, run.from + at, run.bytes, 1, run.signals, run.done}, end))
    ++asked;
  run.asked[threadIdx.x] = asked;
}

auto kernelOf(PortForm form) {
  return form == PortForm::kThread ? portKernel<port::ThisThread>
         : form == PortForm::kWarp ? portKernel<port::ThisWarp>
                                   : portKernel<port::ThisBlock>;
}

void check(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(result));
  std::fflush(stderr);
  std::_Exit(2);
}

}  // namespace

uint32_t portThreads(PortForm /*form*/) {
  return kThreads;
}

void loadPortKernels(PortForm form) {
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, kernelOf(form)), "loading a kernel of the tests");
}

void launchPort(PortBody body, PortForm form, uint32_t blocks, const PortJob& job,
                cudaStream_t stream) {
  kernelOf(form)<<<blocks, kThreads, 0, stream>>>(body, job);
  check(cudaGetLastError(), "launching a kernel of the tests");
}

void launchResidentRun(const ResidentRun& run, cudaStream_t stream) {
  residentRunKernel<<<run.blocks + 1, kThreads, 0, stream>>>(run);
  check(cudaGetLastError(), "launching the resident port beside those who ask it");
}

void launchLate(cudaStream_t stream) {
  lateKernel<<<1, 32, 0, stream>>>(nullptr);
  check(cudaGetLastError(), "launching a kernel that nobody has loaded");
}

}  // namespace peerlane::gputest
