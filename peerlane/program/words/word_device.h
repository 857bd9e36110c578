// SPDX-License-Identifier: Apache-2.0
//
// Words as device code sees them: load, store, add, fence, and a wait that another thread can
// release. The host's side of the same words is program/words/word.h. System scope throughout: the
// writer may be a CPU or another GPU. Words are 8 bytes, aligned, in global memory (of this device,
// a peer's, or pinned host memory). Any thread may call any of these; there is no state.
#pragma once

#if defined(__CUDACC__)

#include <cstdint>

#include "peerlane/program/model/op.h"

namespace peerlane::device {

__device__ __forceinline__ uint64_t loadWordRelaxed(const uint64_t* word) {
  uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}

// Pairs with the release store that wrote the word.
__device__ __forceinline__ uint64_t loadWordAcquire(const uint64_t* word) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}

__device__ __forceinline__ void storeWordRelaxed(uint64_t* word, uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" : : "l"(word), "l"(value) : "memory");
}

// A thread that reads the word with acquire sees everything that this thread wrote, and everything
// that this thread had seen (through a barrier, say).
__device__ __forceinline__ void storeWordRelease(uint64_t* word, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" : : "l"(word), "l"(value) : "memory");
}

// Relaxed; returns the value before the addition. On a peer's memory this needs native atomics
// (NVLink).
__device__ __forceinline__ uint64_t addWord(uint64_t* word, uint64_t value) {
  return atomicAdd_system(reinterpret_cast<unsigned long long*>(word), value);
}

// With a relaxed store after it, it is a release; with a relaxed load before it, an acquire.
__device__ __forceinline__ void fenceSystem() {
  asm volatile("fence.acq_rel.sys;" : : : "memory");
}

// The same among the threads of this device only; a later fenceSystem() of a thread that has seen
// the effect extends it to the system.
__device__ __forceinline__ void fenceDevice() {
  asm volatile("fence.acq_rel.gpu;" : : : "memory");
}

// A word in [2^62, 2^63) releases a wait without satisfying it.
__device__ __forceinline__ bool isPoisonWord(uint64_t value) {
  return (value >> 62) == 1;
}

__device__ __forceinline__ bool isAtLeast(uint64_t value, uint64_t wanted) {
  return static_cast<int64_t>(value - wanted) >= 0;
}

enum class Waited : uint32_t {
  kSatisfied,  // the thread may read everything written before the word was stored
  kReleased,   // the word is poisoned or the abort word is not 0: the thread must not read
};

// A look at the abort word may cost a round trip to the host, so there are this many polls between.
inline constexpr uint32_t kPollsPerAbortLook = 64;

// Polls until (int64)(*word - wanted) >= 0, with acquire. `abortWord` may be null; else it lies in
// pinned host memory, and anything but 0 in it ends the wait. One thread calls; the others of its
// block go on after a barrier.
__device__ inline Waited waitWord(const uint64_t* word, uint64_t wanted,
                                  const uint64_t* abortWord) {
  for (uint32_t polls = 1;; ++polls) {
    const uint64_t value = loadWordAcquire(word);
    if (isPoisonWord(value)) return Waited::kReleased;
    if (isAtLeast(value, wanted)) return Waited::kSatisfied;
    if (abortWord != nullptr && polls % kPollsPerAbortLook == 0 && loadWordRelaxed(abortWord) != 0)
      return Waited::kReleased;
  }
}

// A counter line: 64 bytes of 8 words whose sum is the counter, so that several writers need no
// atomic operation between devices. Each word only grows, so a sum of words read one after another
// is never ahead of the counter.
inline constexpr uint32_t kLineWords = 8;

// Polls until the line's sum is at least `wanted`, as waitWord() does; poison in any of its words
// releases. All 32 lanes of a warp call; the line is read in one access of 64 bytes.
__device__ inline Waited waitLine(const uint64_t* line, uint64_t wanted,
                                  const uint64_t* abortWord) {
  constexpr uint32_t kEveryLane = 0xffffffff;
  const uint32_t lane = threadIdx.x % 32;
  for (uint32_t polls = 1;; ++polls) {
    uint64_t sum = lane < kLineWords ? loadWordAcquire(line + lane) : 0;
    bool released = isPoisonWord(sum);
    if (abortWord != nullptr && polls % kPollsPerAbortLook == 0 && lane == kLineWords)
      released = loadWordRelaxed(abortWord) != 0;
    if (__any_sync(kEveryLane, released)) return Waited::kReleased;
#pragma unroll
    for (uint32_t distance = kLineWords / 2; distance > 0; distance /= 2)
      sum += __shfl_xor_sync(kEveryLane, sum, distance);
    if (isAtLeast(__shfl_sync(kEveryLane, sum, 0), wanted)) break;
  }
  __syncwarp();  // all lanes may read the data that one lane has acquired
  return Waited::kSatisfied;
}

}  // namespace peerlane::device

#endif  // defined(__CUDACC__)
