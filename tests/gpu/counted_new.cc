// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/counted_new.h"

#include <algorithm>
#include <cstdlib>
#include <new>

// There where GPUs are in software: what a GPU would do is not counted.
extern "C" __attribute__((weak)) unsigned peerlaneSoftwareWork();

namespace {

thread_local bool isCounting = false;
thread_local peerlane::gputest::CountedNew::Seen seen;

void* allocate(std::size_t bytes) {
  if (isCounting && (peerlaneSoftwareWork == nullptr || peerlaneSoftwareWork() == 0)) {
    ++seen.count;
    seen.largest = std::max(seen.largest, bytes);
  }
  if (void* const memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  std::abort();
}

}  // namespace

void* operator new(std::size_t bytes) {
  return allocate(bytes);
}
void* operator new[](std::size_t bytes) {
  return allocate(bytes);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace peerlane::gputest {

void CountedNew::begin() {
  seen = {};
  isCounting = true;
}

CountedNew::Seen CountedNew::end() {
  isCounting = false;
  return seen;
}

bool CountedNew::counts() {
  begin();
  ::operator delete(::operator new(1));
  return end().count == 1;
}

}  // namespace peerlane::gputest
