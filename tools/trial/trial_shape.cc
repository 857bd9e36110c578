// SPDX-License-Identifier: Apache-2.0
#include "tools/trial/trial_shape.h"

#include "tools/memory/byte_pattern.h"

namespace peerlane {

std::string trialMemoryName(TrialMemory memory, const Device& gpu) {
  switch (memory) {
    case TrialMemory::kShared: return "host:shared";
    case TrialMemory::kPrivate: return "host:private";
    case TrialMemory::kGpuShared: return gpu.toString() + ":shared";
    case TrialMemory::kGpuMalloc: return gpu.toString() + ":malloc";
  }
  return "unknown";
}

uint64_t countWrongBlocks(std::span<const std::byte> destination, const TrialShape& shape,
                          uint64_t seed, uint64_t old) {
  uint64_t wrong = 0;
  for (uint64_t block = 0; block < shape.count; ++block) {
    const uint64_t from = block * shape.stride();
    const uint64_t to = shape.target(block) * shape.stride();
    wrong += countWrong(destination.subspan(to, shape.blockBytes), seed, from);
    const uint64_t gap = to + shape.blockBytes;
    wrong += countWrong(destination.subspan(gap, shape.gapBytes), old, gap);
  }
  return wrong;
}

}  // namespace peerlane
