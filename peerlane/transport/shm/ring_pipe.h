// SPDX-License-Identifier: Apache-2.0
//
// RingPipe: a byte pipe through memory that two processes share: one single-producer single-
// consumer ring per direction. Its owner hands it the memory; it does not know segments or regions.
// Threads as for FramePipe.
//
// Each side keeps its own positions in private memory and checks the positions that it reads from
// the other side: a hostile peer can garble or end the stream, but cannot make this side touch a
// byte outside the rings.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "peerlane/core/device_code.h"
#include "peerlane/program/model/waker.h"
#include "peerlane/transport/frame_pipe.h"

namespace peerlane {

// The words of one direction. Byte map (all words little endian, zero at the start):
//     0  u64  head     bytes ever written       by the producer
//     8  u32  starved  1: waits for room        by the producer
//    12  u32  ended    1: no byte will follow   by the producer
//    64  u64  tail     bytes ever read          by the consumer
//    72  u32  left     1: reads no more         by the consumer
//   128  the bytes; byte number n lies at 128 + n mod capacity
struct RingWords {
  alignas(kCacheLineBytes) std::atomic<uint64_t> head{0};
  std::atomic<uint32_t> starved{0};
  std::atomic<uint32_t> ended{0};
  alignas(kCacheLineBytes) std::atomic<uint64_t> tail{0};
  std::atomic<uint32_t> left{0};
};
static_assert(sizeof(RingWords) == 128 && alignof(RingWords) == 64, "shared between processes");
static_assert(offsetof(RingWords, starved) == 8 && offsetof(RingWords, ended) == 12 &&
              offsetof(RingWords, tail) == 64 && offsetof(RingWords, left) == 72);
static_assert(std::atomic<uint64_t>::is_always_lock_free && sizeof(std::atomic<uint64_t>) == 8);
static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == 4);

class RingPipe final : public FramePipe {
 public:
  static constexpr size_t kMinCapacity = 4096;

  // Memory for one direction with `capacity` bytes under way.
  static constexpr size_t bytesFor(size_t capacity) { return sizeof(RingWords) + capacity; }

  // `outgoing` and `incoming` are the two directions, seen from here; the peer's pipe has them the
  // other way round. Requires: zeroed before either side begins, 64-byte aligned, each
  // bytesFor(capacity) long with a power of two of at least kMinCapacity. `peer` wakes the other
  // side. Both the memory and the waker's words outlive the pipe. Errors: kInvalidArgument.
  static Result<std::unique_ptr<RingPipe>> create(std::span<std::byte> outgoing,
                                                  std::span<std::byte> incoming, Waker peer);

  bool writable() override { return hasRoom(1); }
  Result<size_t> write(const PipeSlices& from) override;
  bool readable() override;
  Result<size_t> read(const PipeSlices& to) override;
  void refresh() override {}  // the peer rings after every change
  void close() override;

  // For who cuts the stream into records. The first four: threads as for write().
  //
  // Bytes that fit now. Where fewer than `wanted` do, the peer rings this side after its next read.
  Result<uint64_t> room(uint64_t wanted);
  // False when room() would certainly be less.
  bool hasRoom(uint64_t wanted);
  // Bytes ever written; and how many of them the peer has read. Errors as of write(). `rings`: the
  // peer rings this side after its next read.
  uint64_t written() const { return out_.position; }
  Result<uint64_t> taken(bool rings);
  // The peer need not ring any more.
  void letRest();
  // Writes all, which the peer sees after tellWritten(); the memory is the library's. Requires:
  // room.
  void writeOurs(std::span<const IoSlice> slices);
  void tellWritten();
  // Threads as for read(). Bytes that can be read now; there may be more where it is not 0.
  Result<uint64_t> unread();
  // As read(), but the peer sees the room after tellRead().
  Result<size_t> readQuietly(const PipeSlices& to);
  // Reads all of it, quietly; the memory is the library's. Requires: so much is unread.
  void readOurs(std::span<std::byte> to);
  void tellRead();
  bool hasEnded() const { return in_.words->ended.load(std::memory_order_acquire) != 0; }

 private:
  struct Direction {
    // The ring's bytes from number `at` on, as the one or two pieces in which they lie. Requires:
    // bytes <= capacity.
    std::array<IoSlice, 2> pieces(uint64_t at, size_t bytes) const;

    RingWords* words = nullptr;
    std::byte* bytes = nullptr;
    uint64_t capacity = 0;
    uint64_t position = 0;  // our own head or tail; the shared word is a copy of it
    uint64_t other = 0;     // the peer's, as last seen and checked
  };

  RingPipe(Direction out, Direction in, Waker peer) : out_(out), in_(in), peer_(peer) {}
  Status lookForRoom();
  Status lookForBytes();

  Direction out_;  // writers, under the agent's lock
  Direction in_;   // the polling thread
  const Waker peer_;
};

}  // namespace peerlane
