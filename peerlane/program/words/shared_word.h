// SPDX-License-Identifier: Apache-2.0
//
// Words that code of port channels loads, stores and adds to, the same source for GPU threads and
// for CPU threads, so that a thread sanitizer can run the code of a kernel. Words are 8 bytes,
// or 4 where a function says so, aligned. *System*: the other party may be a CPU, another GPU or
// another process. *Device*: all parties are threads of one device. Any thread; there is no state.
#pragma once

#include <cstdint>

#include "peerlane/core/device_code.h"

#if !defined(__CUDA_ARCH__)
#include <atomic>
#include <chrono>
#include <thread>
#endif

namespace peerlane::port {

// Two words that the hardware reads and writes in one access where it can. Nothing guarantees that
// the pair is read atomically; code that needs both words of one store must mark each of them.
struct alignas(16) WordPair {
  uint64_t first;
  uint64_t second;
};

#if defined(__CUDA_ARCH__)

PEERLANE_DEVICE inline uint64_t loadRelaxed(const uint64_t* word) {
  uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}
PEERLANE_DEVICE inline uint64_t loadAcquire(const uint64_t* word) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}
PEERLANE_DEVICE inline WordPair loadPairAcquire(const WordPair* pair) {
  WordPair value;
  asm volatile("ld.acquire.sys.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(value.first), "=l"(value.second)
               : "l"(pair)
               : "memory");
  return value;
}
// The next two are for callers that put one fence after several of them; the loads are then under
// way at the same time.
PEERLANE_DEVICE inline uint64_t loadAhead(const uint64_t* word) {
  return loadRelaxed(word);
}
PEERLANE_DEVICE inline WordPair loadPairAhead(const WordPair* pair) {
  WordPair value;
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(value.first), "=l"(value.second)
               : "l"(pair)
               : "memory");
  return value;
}
PEERLANE_DEVICE inline void storeRelaxed(uint64_t* word, uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" : : "l"(word), "l"(value) : "memory");
}
// A thread that reads the word with acquire sees everything that this thread wrote, or had seen,
// before the store.
PEERLANE_DEVICE inline void storeRelease(uint64_t* word, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" : : "l"(word), "l"(value) : "memory");
}
// The same for words of 4 bytes.
PEERLANE_DEVICE inline uint32_t loadAcquire(const uint32_t* word) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}
PEERLANE_DEVICE inline void storeRelaxed(uint32_t* word, uint32_t value) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" : : "l"(word), "r"(value) : "memory");
}
PEERLANE_DEVICE inline void storeRelease(uint32_t* word, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" : : "l"(word), "r"(value) : "memory");
}
// A thread that reads one of the two words with acquire sees everything that this thread wrote, or
// had seen, before the store.
PEERLANE_DEVICE inline void storePairRelease(WordPair* pair, WordPair value) {
  asm volatile("st.release.sys.global.v2.u64 [%0], {%1, %2};"
               :
               : "l"(pair), "l"(value.first), "l"(value.second)
               : "memory");
}
PEERLANE_DEVICE inline void storePairRelaxed(WordPair* pair, WordPair value) {
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};"
               :
               : "l"(pair), "l"(value.first), "l"(value.second)
               : "memory");
}
// System. On a peer's memory this needs native atomics (NVLink).
PEERLANE_DEVICE inline void addRelease(uint64_t* word, uint64_t value) {
  asm volatile("red.release.sys.global.add.u64 [%0], %1;" : : "l"(word), "l"(value) : "memory");
}
// The same without the release: the caller must put a fence before it.
PEERLANE_DEVICE inline void addBehind(uint64_t* word, uint64_t value) {
  asm volatile("red.relaxed.sys.global.add.u64 [%0], %1;" : : "l"(word), "l"(value) : "memory");
}
// All of the following are device scope but fenceSystem().
PEERLANE_DEVICE inline uint64_t fetchAdd(uint64_t* word, uint64_t value) {
  return atomicAdd(reinterpret_cast<unsigned long long*>(word), value);
}
PEERLANE_DEVICE inline void raise(uint64_t* word, uint64_t atLeast) {
  asm volatile("red.relaxed.gpu.global.max.u64 [%0], %1;" : : "l"(word), "l"(atLeast) : "memory");
}
PEERLANE_DEVICE inline uint64_t fetchRaise(uint64_t* word, uint64_t atLeast) {
  return atomicMax(reinterpret_cast<unsigned long long*>(word), atLeast);
}
// True: `word` was `from` and is `to`.
PEERLANE_DEVICE inline bool exchangeIf(uint64_t* word, uint64_t from, uint64_t to) {
  return atomicCAS(reinterpret_cast<unsigned long long*>(word), from, to) == from;
}
PEERLANE_DEVICE inline void fenceSystem() {
  asm volatile("fence.acq_rel.sys;" : : : "memory");
}
PEERLANE_DEVICE inline void fenceDevice() {
  asm volatile("fence.acq_rel.gpu;" : : : "memory");
}
PEERLANE_DEVICE inline uint64_t nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// Called between two looks at a word that other threads store; `looks` counts them.
PEERLANE_DEVICE inline void pauseBetween(uint32_t /*looks*/) {}

#else

PEERLANE_DEVICE inline void pauseBetween(uint32_t looks) {
  // The thread that stores the word may need this core.
  if (looks % 64 == 0)
    std::this_thread::yield();
  else
    cpuRelax();
}

PEERLANE_DEVICE inline uint64_t loadRelaxed(const uint64_t* word) {
  return std::atomic_ref<const uint64_t>(*word).load(std::memory_order_relaxed);
}
PEERLANE_DEVICE inline uint64_t loadAcquire(const uint64_t* word) {
  return std::atomic_ref<const uint64_t>(*word).load(std::memory_order_acquire);
}
PEERLANE_DEVICE inline WordPair loadPairAcquire(const WordPair* pair) {
  return {loadAcquire(&pair->first), loadAcquire(&pair->second)};
}
// On a CPU these loads are acquires, so they need no fence after them: a thread sanitizer does not
// understand fences.
PEERLANE_DEVICE inline uint64_t loadAhead(const uint64_t* word) {
  return loadAcquire(word);
}
PEERLANE_DEVICE inline WordPair loadPairAhead(const WordPair* pair) {
  return loadPairAcquire(pair);
}
PEERLANE_DEVICE inline void storeRelaxed(uint64_t* word, uint64_t value) {
  std::atomic_ref<uint64_t>(*word).store(value, std::memory_order_relaxed);
}
PEERLANE_DEVICE inline void storeRelease(uint64_t* word, uint64_t value) {
  std::atomic_ref<uint64_t>(*word).store(value, std::memory_order_release);
}
PEERLANE_DEVICE inline uint32_t loadAcquire(const uint32_t* word) {
  return std::atomic_ref<const uint32_t>(*word).load(std::memory_order_acquire);
}
PEERLANE_DEVICE inline void storeRelaxed(uint32_t* word, uint32_t value) {
  std::atomic_ref<uint32_t>(*word).store(value, std::memory_order_relaxed);
}
PEERLANE_DEVICE inline void storeRelease(uint32_t* word, uint32_t value) {
  std::atomic_ref<uint32_t>(*word).store(value, std::memory_order_release);
}
PEERLANE_DEVICE inline void storePairRelease(WordPair* pair, WordPair value) {
  std::atomic_ref<uint64_t>(pair->first).store(value.first, std::memory_order_release);
  std::atomic_ref<uint64_t>(pair->second).store(value.second, std::memory_order_release);
}
PEERLANE_DEVICE inline void storePairRelaxed(WordPair* pair, WordPair value) {
  storePairRelease(pair, value);  // a CPU has no cheaper way to be seen after its earlier stores
}
PEERLANE_DEVICE inline void addRelease(uint64_t* word, uint64_t value) {
  std::atomic_ref<uint64_t>(*word).fetch_add(value, std::memory_order_release);
}
PEERLANE_DEVICE inline void addBehind(uint64_t* word, uint64_t value) {
  addRelease(word, value);
}
// Stronger than on a device, where callers put fences around them if the order matters.
PEERLANE_DEVICE inline uint64_t fetchAdd(uint64_t* word, uint64_t value) {
  return std::atomic_ref<uint64_t>(*word).fetch_add(value, std::memory_order_acq_rel);
}
PEERLANE_DEVICE inline uint64_t fetchRaise(uint64_t* word, uint64_t atLeast) {
  std::atomic_ref<uint64_t> raised(*word);
  uint64_t seen = raised.load(std::memory_order_relaxed);
  while (seen < atLeast &&
         !raised.compare_exchange_weak(seen, atLeast, std::memory_order_acq_rel)) {
  }
  return seen;
}
PEERLANE_DEVICE inline void raise(uint64_t* word, uint64_t atLeast) {
  (void)fetchRaise(word, atLeast);
}
PEERLANE_DEVICE inline bool exchangeIf(uint64_t* word, uint64_t from, uint64_t to) {
  return std::atomic_ref<uint64_t>(*word).compare_exchange_strong(from, to,
                                                                  std::memory_order_acq_rel);
}
// Releases of this file need no fence before them on a CPU.
PEERLANE_DEVICE inline void fenceSystem() {
#if !PEERLANE_THREAD_SANITIZER
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}
PEERLANE_DEVICE inline void fenceDevice() {
  fenceSystem();
}
PEERLANE_DEVICE inline uint64_t nanoseconds() {
  return static_cast<uint64_t>(
      std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count());
}

#endif

}  // namespace peerlane::port
