// SPDX-License-Identifier: Apache-2.0
//
// What travels between software HCAs: packets as RoCE has them (one for each piece of the path MTU,
// numbered by PSN), in rings of bytes that lie in the fabric file. A ring has one writer and one
// reader, each an engine; a writer that dies leaves at most a packet that was never published.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace peerlane::softhca {

// Numbers of packets have 24 bits, and go round.
inline constexpr uint32_t kPsnMask = 0xffffff;
inline int32_t psnDistance(uint32_t from, uint32_t to) {
  return static_cast<int32_t>((to - from) << 8) >> 8;
}

struct GidBytes {
  uint8_t raw[16];
  bool operator==(const GidBytes&) const = default;
};

enum class PacketKind : uint8_t {
  kSend,
  kWrite,
  kRead,
  kFetchAdd,
  kCompareSwap,
  // Answers.
  kAck,
  kNak,
  kRnrNak,
  kReadPiece,
  kAtomicResult,
};

enum class NakReason : uint8_t { kSequence, kInvalidRequest, kRemoteAccess, kRemoteOperation };

struct Packet {
  enum Flags : uint8_t {
    kFirst = 1,
    kLast = 2,
    kImmediate = 4,
    kSolicited = 8,
    kInvalidate = 16,
  };
  uint32_t size;  // of the record, a multiple of kAlignment
  uint32_t payloadBytes;
  PacketKind kind;
  uint8_t flags;
  uint8_t detail;  // NakReason, or the RNR timer
  uint8_t mtu;
  uint32_t destinationQueuePair;
  uint32_t sourceQueuePair;
  uint32_t psn;
  uint32_t attempt;    // of requests; answers to requests repeat it
  uint32_t immediate;  // or the key to invalidate
  uint32_t key;
  uint64_t address;  // of this piece; of pieces of a READ: its place in the message
  uint64_t length;   // of the message; or what to add, or to compare with
  uint64_t swap;     // or the word found
  GidBytes source;
  GidBytes destination;
  uint8_t padding[28];

  static constexpr uint32_t kAlignment = 64;
  uint8_t* payload() { return reinterpret_cast<uint8_t*>(this + 1); }
  const uint8_t* payload() const { return reinterpret_cast<const uint8_t*>(this + 1); }
};
static_assert(sizeof(Packet) == 128);

class PacketRing {
 public:
  static constexpr uint32_t kBytes = 128 << 10;

  // --- The writer ---

  // Null: no room. A packet in the ring, which is published by commit().
  Packet* reserve(size_t payloadBytes);
  bool hasRoom(size_t payloadBytes) const;
  void commit(const Packet* packet);
  uint64_t written() const { return tail_.load(std::memory_order_relaxed); }
  // The reader has taken everything up to this place.
  bool isReadTo(uint64_t place) const { return head_.load(std::memory_order_acquire) >= place; }
  // The reader is asked to wake the writer when it has taken something.
  void askForRoom() { wantsRoom_.store(1, std::memory_order_seq_cst); }

  // --- The reader ---

  const Packet* front();
  void pop(const Packet* packet);
  bool isEmpty() const {
    return head_.load(std::memory_order_relaxed) == tail_.load(std::memory_order_acquire);
  }
  bool takeWish() {
    return wantsRoom_.load(std::memory_order_relaxed) != 0 &&
           wantsRoom_.exchange(0, std::memory_order_seq_cst) != 0;
  }

  void clear();

 private:
  Packet* at(uint64_t place) { return reinterpret_cast<Packet*>(bytes_ + place % kBytes); }

  alignas(64) std::atomic<uint64_t> tail_;
  alignas(64) std::atomic<uint64_t> head_;
  std::atomic<uint32_t> wantsRoom_;
  alignas(64) uint8_t bytes_[kBytes];
};

}  // namespace peerlane::softhca
