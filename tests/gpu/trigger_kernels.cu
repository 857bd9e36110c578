// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/trigger_kernels.h"

#include <cuda_runtime.h>

namespace peerlane::gputest {
namespace {

__global__ void triggerKernel(TriggerGame* game) {
  playTriggered(port::ThisBlock{}, *game);
}

}  // namespace

void launchTriggerGame(TriggerGame* game, cudaStream_t stream) {
  triggerKernel<<<1, 128, 0, stream>>>(game);
}

uint64_t otherWorkOfStreams() {
  return 0;
}

}  // namespace peerlane::gputest
