// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/kernel/word_kernel.h"

#include <cuda_runtime.h>

#include <string>

#include "peerlane/program/kernel/word_step_device.h"

namespace peerlane::kernel {
namespace {

struct WordJob {
  WordWait wait;
  WordTail tail;
};

template <bool kLine>
__global__ void __launch_bounds__(32) wordKernel(const __grid_constant__ WordJob job) {
  bool released;
  if constexpr (kLine)
    released = device::waitLine(job.wait.word, operandNow(job.wait.atLeast), job.wait.abort) ==
               device::Waited::kReleased;
  else
    released = threadIdx.x == 0 && !passesWait(job.wait);
  if (threadIdx.x != 0 || job.tail.isEmpty()) return;
  device::fenceSystem();
  performTail(job.tail, released);
}

Status failed(cudaError_t error, const char* what) {
  (void)cudaGetLastError();  // it is reported here and shall not be found by somebody else's call
  return Status(Code::kSystem, std::string(what) + ": " + cudaGetErrorString(error));
}

}  // namespace

Status loadWordKernels() {
  cudaFuncAttributes attributes;
  for (const void* kernel : {reinterpret_cast<const void*>(&wordKernel<false>),
                             reinterpret_cast<const void*>(&wordKernel<true>)})
    if (cudaError_t error = cudaFuncGetAttributes(&attributes, kernel))
      return failed(error, "loading a word kernel");
  return Status::ok();
}

Status launchWords(const WordLaunch& launch) {
  if (launch.tail.storeCount > kMaxWordStores)
    return Status(Code::kInvalidArgument, "too many words to store");
  if (launch.waitsForLine &&
      (launch.wait.word == nullptr || reinterpret_cast<uintptr_t>(launch.wait.word) % 64 != 0))
    return Status(Code::kInvalidArgument, "a counter line begins on 64 bytes");
  const void* kernel = launch.waitsForLine ? reinterpret_cast<const void*>(&wordKernel<true>)
                                           : reinterpret_cast<const void*>(&wordKernel<false>);
  WordJob job{launch.wait, launch.tail};
  void* arguments[] = {&job};
  if (cudaError_t error = cudaLaunchKernel(kernel, dim3(1), dim3(32), arguments, 0,
                                           static_cast<cudaStream_t>(launch.stream)))
    return failed(error, "launching a word kernel");
  return Status::ok();
}

}  // namespace peerlane::kernel
