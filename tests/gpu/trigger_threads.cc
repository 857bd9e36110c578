// SPDX-License-Identifier: Apache-2.0
//
// The kernel of the trigger tests on GPUs in software.
#include <thread>
#include <vector>

#include "tests/fake/software_gpu/software_stream.h"
#include "tests/gpu/trigger_kernels.h"

namespace peerlane::gputest {

void launchTriggerGame(TriggerGame* game, cudaStream_t stream) {
  (void)softgpu::launchKernel(stream, [game](int /*device*/) {
    constexpr uint32_t kThreads = 3;
    port::Crew::Shared shared(kThreads);
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < kThreads; ++rank)
      threads.emplace_back([&, rank] { playTriggered(port::Crew(rank, shared), *game); });
    for (std::thread& thread : threads) thread.join();
  });
}

uint64_t otherWorkOfStreams() {
  using softgpu::NodeKind;
  uint64_t sum = 0;
  for (const NodeKind kind :
       {NodeKind::kFill, NodeKind::kHost, NodeKind::kEvent, NodeKind::kFree, NodeKind::kGraph})
    sum += softgpu::nodesOf(kind);
  return sum;
}

}  // namespace peerlane::gputest
