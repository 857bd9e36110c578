// SPDX-License-Identifier: Apache-2.0
#include "peerlane/progress/fifo.h"

#include <atomic>
#include <bit>
#include <string>

namespace peerlane {

Status Fifo::check(uint32_t slots) {
  if (slots >= kLeastSlots && slots <= kMostSlots && std::has_single_bit(slots))
    return Status::ok();
  return Status(Code::kInvalidArgument, "a FIFO of " + std::to_string(slots) +
                                            " slots; a power of two from " +
                                            std::to_string(kLeastSlots) + " to " +
                                            std::to_string(kMostSlots) + " would do");
}

Fifo::Fifo(uint32_t slots, std::byte* host, std::byte* device)
    : tail_(reinterpret_cast<uint64_t*>(host)) {
  handle_.slots = reinterpret_cast<port::WordPair*>(host + kCacheLineBytes);
  handle_.tail = tail_;
  handle_.closed = tail_ + 1;
  handle_.head = reinterpret_cast<uint64_t*>(device);
  handle_.tailSeen = reinterpret_cast<uint64_t*>(device + kCacheLineBytes);
  handle_.slotCount = slots;
  handle_.lapShift = static_cast<uint32_t>(std::countr_zero(slots));
}

bool Fifo::pop(port::PortRequest& request) {
  port::WordPair halves[port::kMostHalves];
  uint32_t count = 1;
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t position = next_ + i;
    const uint64_t mark = port::lapMark(position, handle_.lapShift);
    const port::WordPair seen =
        port::loadPairAcquire(handle_.slots + (position & (handle_.slotCount - 1)));
    // Both words: a store may arrive in two parts.
    if ((seen.first & port::kLapBit) != mark || (seen.second & port::kLapBit) != mark) return false;
    halves[i] = {seen.first & ~port::kLapBit, seen.second & ~port::kLapBit};
    if (i == 0) count = port::halvesOf(seen.first);
  }
  request = port::decode(halves);
  next_ += count;
  // Release: the slots were read before they are given back. Partner: awaitRoom().
  std::atomic_ref<uint64_t>(*tail_).store(next_, std::memory_order_release);
  return true;
}

bool Fifo::hasNext() const {
  const uint64_t position = std::atomic_ref<uint64_t>(*tail_).load(std::memory_order_relaxed);
  const port::WordPair seen =
      port::loadPairAcquire(handle_.slots + (position & (handle_.slotCount - 1)));
  return (seen.first & port::kLapBit) == port::lapMark(position, handle_.lapShift);
}

bool Fifo::hasAny() const {
  for (uint64_t position = next_; position < next_ + handle_.slotCount; ++position) {
    const port::WordPair seen =
        port::loadPairAcquire(handle_.slots + (position & (handle_.slotCount - 1)));
    if ((seen.first & port::kLapBit) == port::lapMark(position, handle_.lapShift)) return true;
  }
  return false;
}

void Fifo::close() {
  std::atomic_ref<uint64_t>(tail_[1]).store(1, std::memory_order_release);
}

}  // namespace peerlane
