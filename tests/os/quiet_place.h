// SPDX-License-Identifier: Apache-2.0
//
// Places in the address space for tests that free memory in the middle of their own and look at
// what is left. The kernel gives out its highest free addresses, and a page that was just freed
// there is soon somebody else's: a sanitizer's, the C library's, another thread's. So the hole
// would be filled, and to unmap the whole later would take their memory away. The kernel gives out
// nothing as far below as these places are.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace peerlane {

// For mmap() as its hint: of so many bytes, with a page on both sides that nobody has. Each call
// returns another one.
inline void* quietPlace(size_t bytes) {
#if defined(__SANITIZE_THREAD__)
  constexpr uint64_t kFirst = 0x006000000000;  // its runtime knows few ranges
#else
  constexpr uint64_t kFirst = 0x200000000000;
#endif
  constexpr uint64_t kPage = 4096;
  static std::atomic<uint64_t> next{kFirst + kPage};
  return reinterpret_cast<void*>(next.fetch_add((bytes + 2 * kPage - 1) / kPage * kPage));
}

}  // namespace peerlane
