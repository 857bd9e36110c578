// SPDX-License-Identifier: Apache-2.0
//
// The differences between compilers, and between host and device code, in one place: code outside
// this file does not ask which compiler builds it. Holds no logic. Thread-safe: there is no state.
#pragma once

#include <cstddef>

#if defined(__CUDACC__)
#define PEERLANE_DEVICE __host__ __device__
#else
#define PEERLANE_DEVICE
#endif

#define PEERLANE_ALWAYS_INLINE inline __attribute__((always_inline))

// ThreadSanitizer follows atomic operations but not stand-alone fences; code that relies on fences
// asks this.
#if defined(__SANITIZE_THREAD__)
#define PEERLANE_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define PEERLANE_THREAD_SANITIZER 1
#endif
#endif
#if !defined(PEERLANE_THREAD_SANITIZER)
#define PEERLANE_THREAD_SANITIZER 0
#endif

namespace peerlane {

// Words written by different threads or processes are kept this far apart. A constant, not
// std::hardware_destructive_interference_size: it is part of layouts that two builds share.
inline constexpr std::size_t kCacheLineBytes = 64;

// Tells the core that this is a polling loop: it saves power and gives the sibling hardware thread
// room.
PEERLANE_DEVICE PEERLANE_ALWAYS_INLINE void cpuRelax() {
#if defined(__CUDA_ARCH__)
  __nanosleep(20);
#else
  __builtin_ia32_pause();
#endif
}

}  // namespace peerlane
