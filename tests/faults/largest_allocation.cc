// SPDX-License-Identifier: Apache-2.0
#include "tests/faults/largest_allocation.h"

#include <cstdlib>
#include <new>

namespace peerlane {

std::atomic<size_t> largest_allocation{0};

}  // namespace peerlane

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void* operator new(size_t bytes) {
  auto& largest = peerlane::largest_allocation;
  for (size_t seen = largest.load(std::memory_order_relaxed);
       bytes > seen && !largest.compare_exchange_weak(seen, bytes, std::memory_order_relaxed);) {
  }
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t /*bytes*/) noexcept {
  std::free(memory);
}
#endif
