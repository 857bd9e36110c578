// SPDX-License-Identifier: Apache-2.0
#include "tests/fake/software_hca/hca_ring.h"

namespace peerlane::softhca {
namespace {

// Of a record that fills the end of the ring, where the next packet did not fit.
constexpr uint32_t kNothing = 0;

uint32_t sizeFor(size_t payloadBytes) {
  const size_t bytes = sizeof(Packet) + payloadBytes;
  return static_cast<uint32_t>((bytes + Packet::kAlignment - 1) & ~size_t{Packet::kAlignment - 1});
}

}  // namespace

bool PacketRing::hasRoom(size_t payloadBytes) const {
  const uint32_t size = sizeFor(payloadBytes);
  const uint64_t tail = tail_.load(std::memory_order_relaxed);
  const auto toEnd = static_cast<uint32_t>(kBytes - tail % kBytes);
  const uint32_t skipped = toEnd < size ? toEnd : 0;
  return tail + skipped + size - head_.load(std::memory_order_acquire) <= kBytes;
}

Packet* PacketRing::reserve(size_t payloadBytes) {
  const uint32_t size = sizeFor(payloadBytes);
  if (!hasRoom(payloadBytes)) return nullptr;
  uint64_t tail = tail_.load(std::memory_order_relaxed);
  const auto skipped = static_cast<uint32_t>(kBytes - tail % kBytes);
  if (skipped < size) {
    at(tail)->size = kNothing;
    tail += skipped;
    tail_.store(tail, std::memory_order_release);
  }
  Packet* packet = at(tail);
  *packet = {};
  packet->size = size;
  packet->payloadBytes = static_cast<uint32_t>(payloadBytes);
  return packet;
}

void PacketRing::commit(const Packet* packet) {
  tail_.store(tail_.load(std::memory_order_relaxed) + packet->size, std::memory_order_seq_cst);
}

const Packet* PacketRing::front() {
  uint64_t head = head_.load(std::memory_order_relaxed);
  while (head != tail_.load(std::memory_order_acquire)) {
    const Packet* packet = at(head);
    if (packet->size != kNothing) return packet;
    head += kBytes - head % kBytes;
    head_.store(head, std::memory_order_release);
  }
  return nullptr;
}

void PacketRing::pop(const Packet* packet) {
  head_.store(head_.load(std::memory_order_relaxed) + packet->size, std::memory_order_seq_cst);
}

void PacketRing::clear() {
  head_.store(tail_.load(std::memory_order_relaxed), std::memory_order_release);
  wantsRoom_.store(0, std::memory_order_relaxed);
}

}  // namespace peerlane::softhca
