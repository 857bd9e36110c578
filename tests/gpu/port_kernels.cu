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

void launchLate(cudaStream_t stream) {
  lateKernel<<<1, 32, 0, stream>>>(nullptr);
  check(cudaGetLastError(), "launching a kernel that nobody has loaded");
}

}  // namespace peerlane::gputest
