// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/kernel/launch/word_kernel.h"

#include "peerlane/program/kernel/launch/kernel_launch.h"
#include "peerlane/program/kernel/launch/word_step_device.h"

namespace peerlane::kernel {
namespace {

struct WordJob {
  WordWait wait;
  WordStore addition;
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
  if (threadIdx.x != 0 || (job.tail.isEmpty() && job.addition.word == nullptr)) return;
  device::fenceSystem();
  if (job.addition.word != nullptr && !released)
    (void)device::addWord(job.addition.word, operandNow(job.addition.value));
  performTail(job.tail, released);
}

}  // namespace

Status loadWordKernels() {
  for (const void* kernel : {reinterpret_cast<const void*>(&wordKernel<false>),
                             reinterpret_cast<const void*>(&wordKernel<true>)})
    PEERLANE_RETURN_IF_ERROR(loadKernel(kernel, "a word kernel"));
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
  WordJob job{launch.wait, launch.addition, launch.tail};
  return launchKernel({.kernel = kernel, .stream = launch.stream}, &job, "launching a word kernel");
}

}  // namespace peerlane::kernel
