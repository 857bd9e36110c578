// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/spread_mapping.h"

#include <sys/mman.h>

#include <atomic>
#include <cerrno>

namespace peerlane {
namespace {

constexpr size_t kStep = size_t{64} << 20;
constexpr size_t kSpread = 4 * kStep;
constexpr size_t kLeastBytes = size_t{4} << 20;

}  // namespace

void* mapSpread(MemoryOf owner, size_t bytes, int protection, int fd, uint64_t fileOffset,
                size_t pageBytes) {
  const auto plain = [&] {
    return ::mmap(nullptr, bytes, protection, MAP_SHARED, fd, static_cast<off_t>(fileOffset));
  };
  if (bytes < kLeastBytes || pageBytes > kStep) return plain();
  // Reserves addresses only, twice as many as needed, and gives the rest back. Where addresses are
  // limited and this fails, the kernel chooses the place.
  const size_t reserved = bytes + kSpread;
  void* const area =
      ::mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (area == MAP_FAILED) return plain();
  // Two places for each owner, in turns, so that not all of a process lies alike either.
  static std::atomic<size_t> turn{0};
  const size_t odd = owner == MemoryOf::kPeer ? 1 : 0;
  const size_t step = 2 * (turn.fetch_add(1, std::memory_order_relaxed) % 2) + odd;
  const size_t place = step * kStep + fileOffset % kStep;
  const size_t before = (place - reinterpret_cast<uintptr_t>(area)) % kSpread;
  std::byte* const start = static_cast<std::byte*>(area) + before;
  void* const mapped =
      ::mmap(start, bytes, protection, MAP_SHARED | MAP_FIXED, fd, static_cast<off_t>(fileOffset));
  const int error = errno;
  if (before > 0) ::munmap(area, before);
  ::munmap(start + bytes, kSpread - before);
  if (mapped != MAP_FAILED) return mapped;
  // A failed attempt may have removed the reservation in the middle, and another thread may have
  // got the hole: so the hole is left alone, which costs addresses at most.
  errno = error;
  return MAP_FAILED;
}

}  // namespace peerlane
