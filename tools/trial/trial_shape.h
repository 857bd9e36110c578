// SPDX-License-Identifier: Apache-2.0
//
// The shape of one proof transfer: how many blocks, where they come from and go to; and the check
// that every byte arrived and none went elsewhere. Plain values, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "peerlane/memory/device.h"
#include "peerlane/program/device/device_stream.h"

namespace peerlane {

// Of the host: what Context::allocate makes, and any other. Of the GPU of this side: likewise.
enum class TrialMemory : uint8_t { kShared, kPrivate, kGpuShared, kGpuMalloc };

constexpr bool isGpu(TrialMemory memory) {
  return memory == TrialMemory::kGpuShared || memory == TrialMemory::kGpuMalloc;
}

// "host:shared", "host:private", "cuda:1:shared", "cuda:1:malloc". `gpu`: of the side in question.
std::string trialMemoryName(TrialMemory memory, const Device& gpu);

// `count` blocks; block i of the source lies at i * stride() and goes to block target(i) of the
// destination.
struct TrialShape {
  TrialMemory local = TrialMemory::kShared;
  TrialMemory remote = TrialMemory::kShared;
  uint64_t blockBytes = 0;
  uint64_t count = 1;
  uint64_t gapBytes = 0;          // bytes after each block that must stay as they were
  Engine engine = Engine::kAuto;  // GPUs: the engine that copies

  uint64_t stride() const { return blockBytes + gapBytes; }
  uint64_t movedBytes() const { return blockBytes * count; }
  uint64_t regionBytes() const { return stride() * count; }
  // A permutation of the blocks that leaves no two neighbours together (for a count that 37 does
  // not divide).
  uint64_t target(uint64_t block) const { return count % 37 == 0 ? block : block * 37 % count; }
};

// Bytes of `destination` that are wrong: blocks must hold the source's pattern `seed`, gaps the
// pattern `old`.
uint64_t countWrongBlocks(std::span<const std::byte> destination, const TrialShape& shape,
                          uint64_t seed, uint64_t old);

}  // namespace peerlane
