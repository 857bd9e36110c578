// SPDX-License-Identifier: Apache-2.0
//
// Orders: the producer's store of `head` is seen by the consumer's acquiring load, with the bytes
// before it; the consumer's store of `tail` by the producer's, with the room that the tail frees.
// Both stores are sequentially consistent because the wake rule reads the sleeper's word after
// them.
//
// `starved` saves wake-ups: the producer sets it and reads `tail` once more, the consumer stores
// `tail` and then reads it (both sequentially consistent, so one of them sees the other).
#include "peerlane/transport/shm/ring_pipe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>

#include "peerlane/os/mappings/nofault_copy.h"

namespace peerlane {
namespace {

Status corrupt(const char* word, uint64_t value, uint64_t low, uint64_t high) {
  return Status(Code::kCorrupt, std::string("the peer's ring ") + word + " is " +
                                    std::to_string(value) + "; accepted: " + std::to_string(low) +
                                    " to " + std::to_string(high));
}

// Copies between the ring, from byte number `at` on, and flat memory. Requires: bytes <= capacity.
void copyIn(std::byte* ring, uint64_t capacity, uint64_t at, const std::byte* from, size_t bytes) {
  const size_t index = at & (capacity - 1);
  const size_t first = std::min<size_t>(bytes, capacity - index);
  std::memcpy(ring + index, from, first);
  if (bytes > first) std::memcpy(ring, from + first, bytes - first);
}

void copyOut(const std::byte* ring, uint64_t capacity, uint64_t at, std::byte* to, size_t bytes) {
  const size_t index = at & (capacity - 1);
  const size_t first = std::min<size_t>(bytes, capacity - index);
  std::memcpy(to, ring + index, first);
  if (bytes > first) std::memcpy(to + first, ring, bytes - first);
}

}  // namespace

std::array<IoSlice, 2> RingPipe::Direction::pieces(uint64_t at, size_t length) const {
  const size_t index = at & (capacity - 1);
  const size_t first = std::min<size_t>(length, capacity - index);
  return {IoSlice{bytes + index, first}, IoSlice{bytes, length - first}};
}

Result<std::unique_ptr<RingPipe>> RingPipe::create(std::span<std::byte> outgoing,
                                                   std::span<std::byte> incoming, Waker peer) {
  Direction directions[2];
  const std::span<std::byte> areas[] = {outgoing, incoming};
  for (int i = 0; i < 2; ++i) {
    const size_t bytes = areas[i].size();
    const size_t capacity = bytes < sizeof(RingWords) ? 0 : bytes - sizeof(RingWords);
    const bool aligned = reinterpret_cast<uintptr_t>(areas[i].data()) % alignof(RingWords) == 0;
    if (!std::has_single_bit(capacity) || capacity < kMinCapacity || !aligned)
      return Status(Code::kInvalidArgument,
                    "ring of " + std::to_string(bytes) + " bytes at an " + (aligned ? "" : "un") +
                        "aligned address; accepted: 128 + a power of two, " +
                        std::to_string(kMinCapacity) + " or more, aligned to 64");
    directions[i].words = reinterpret_cast<RingWords*>(areas[i].data());
    directions[i].bytes = areas[i].data() + sizeof(RingWords);
    directions[i].capacity = capacity;
  }
  return std::unique_ptr<RingPipe>(new RingPipe(directions[0], directions[1], peer));
}

// Reads and checks the peer's tail: updates out_.other.
Status RingPipe::lookForRoom() {
  if (out_.words->left.load(std::memory_order_acquire) != 0)
    return Status(Code::kPeerLost, "the peer left the ring");
  const uint64_t tail = out_.words->tail.load(std::memory_order_seq_cst);
  // The tail never goes back and never passes our head.
  if (tail - out_.other > out_.position - out_.other)
    return corrupt("tail", tail, out_.other, out_.position);
  out_.other = tail;
  return {};
}

Result<uint64_t> RingPipe::room(uint64_t wanted) {
  PEERLANE_RETURN_IF_ERROR(lookForRoom());
  if (out_.capacity - (out_.position - out_.other) < wanted)
    PEERLANE_RETURN_IF_ERROR(taken(/*rings=*/true).status());
  return out_.capacity - (out_.position - out_.other);
}

void RingPipe::letRest() {
  if (out_.words->starved.load(std::memory_order_relaxed) != 0)
    out_.words->starved.store(0, std::memory_order_relaxed);
}

bool RingPipe::hasRoom(uint64_t wanted) {
  if (out_.capacity - (out_.position - out_.other) >= wanted) return true;
  Result<uint64_t> found = room(wanted);
  return !found || *found >= wanted;  // an error is reported by the write
}

Result<uint64_t> RingPipe::taken(bool rings) {
  if (rings) out_.words->starved.store(1, std::memory_order_seq_cst);
  PEERLANE_RETURN_IF_ERROR(lookForRoom());
  return out_.other;
}

Result<size_t> RingPipe::write(const PipeSlices& from) {
  PEERLANE_ASSIGN(const uint64_t free, room(1));
  if (free == 0) return size_t{0};
  letRest();
  size_t taken = 0;
  if (from.areOurs()) {
    for (const IoSlice& slice : from.slices) {
      const size_t bytes = std::min<uint64_t>(slice.bytes, free - taken);
      copyIn(out_.bytes, out_.capacity, out_.position + taken,
             static_cast<const std::byte*>(slice.base), bytes);
      taken += bytes;
      if (taken == free) break;
    }
  } else {
    taken = nofaultRead(out_.pieces(out_.position, free), from.slices);
    if (taken == 0) return Status(Code::kRevoked, "memory to be sent cannot be read");
  }
  out_.position += taken;
  if (taken != 0) tellWritten();
  return taken;
}

void RingPipe::writeOurs(std::span<const IoSlice> slices) {
  size_t taken = 0;
  for (const IoSlice& slice : slices) {
    copyIn(out_.bytes, out_.capacity, out_.position + taken,
           static_cast<const std::byte*>(slice.base), slice.bytes);
    taken += slice.bytes;
  }
  out_.position += taken;
}

void RingPipe::tellWritten() {
  out_.words->head.store(out_.position, std::memory_order_seq_cst);
  peer_.ring();
}

// Reads and checks the peer's head: updates in_.other.
Status RingPipe::lookForBytes() {
  const bool ended = in_.words->ended.load(std::memory_order_acquire) != 0;
  const uint64_t head = in_.words->head.load(std::memory_order_acquire);
  // The head never goes back and is never more than the capacity ahead of our tail.
  if (head - in_.position > in_.capacity || head - in_.position < in_.other - in_.position)
    return corrupt("head", head, in_.other, in_.position + in_.capacity);
  in_.other = head;
  if (ended && head == in_.position) return Status(Code::kPeerLost, "the peer ended the ring");
  return {};
}

Result<uint64_t> RingPipe::unread() {
  if (in_.other == in_.position) PEERLANE_RETURN_IF_ERROR(lookForBytes());
  return in_.other - in_.position;
}

bool RingPipe::readable() {
  return in_.other != in_.position ||
         in_.words->head.load(std::memory_order_acquire) != in_.position ||
         in_.words->ended.load(std::memory_order_acquire) != 0;
}

Result<size_t> RingPipe::read(const PipeSlices& to) {
  Result<size_t> given = readQuietly(to);
  if (given && *given != 0) tellRead();
  return given;
}

Result<size_t> RingPipe::readQuietly(const PipeSlices& to) {
  PEERLANE_RETURN_IF_ERROR(lookForBytes());
  const uint64_t there = in_.other - in_.position;
  if (there == 0) return size_t{0};
  size_t given = 0;
  if (to.areOurs()) {
    for (const IoSlice& slice : to.slices) {
      const size_t bytes = std::min<uint64_t>(slice.bytes, there - given);
      copyOut(in_.bytes, in_.capacity, in_.position + given, static_cast<std::byte*>(slice.base),
              bytes);
      given += bytes;
      if (given == there) break;
    }
  } else {
    given = nofaultWrite(to.slices, in_.pieces(in_.position, there));
    if (given == 0) return Status(Code::kRevoked, "memory to be filled cannot be written");
  }
  in_.position += given;
  return given;
}

void RingPipe::readOurs(std::span<std::byte> to) {
  copyOut(in_.bytes, in_.capacity, in_.position, to.data(), to.size());
  in_.position += to.size();
}

void RingPipe::tellRead() {
  in_.words->tail.store(in_.position, std::memory_order_seq_cst);
  if (in_.words->starved.load(std::memory_order_seq_cst) != 0) peer_.ring();
}

void RingPipe::close() {
  out_.words->ended.store(1, std::memory_order_seq_cst);
  in_.words->left.store(1, std::memory_order_seq_cst);
  peer_.ring();
}

}  // namespace peerlane
