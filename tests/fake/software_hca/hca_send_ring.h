// SPDX-License-Identifier: Apache-2.0
//
// The send queue of a pair as posts fill it: entries of one size, with their pieces or their
// inlined bytes behind the header. Any thread posts (one short lock, no allocation, no system
// call); the engine reads what is published, and writes only the packet numbers. An entry is free
// again when a completion of it or of a later one was polled, as with hardware, so who signals too
// seldom finds the queue full.
#pragma once

#include <infiniband/verbs.h>

#include <span>
#include <vector>

#include "tests/fake/software_hca/hca_spin.h"

namespace peerlane::softhca {

struct SendEntry {
  uint64_t id;
  uint64_t remoteAddress;
  uint64_t compareAdd;
  uint64_t swap;
  uint32_t key;
  uint32_t immediate;  // or the key to invalidate
  uint32_t firstPsn, lastPsn;
  uint32_t length;
  uint16_t pieceCount;
  uint8_t opcode;     // ibv_wr_opcode
  uint8_t flags;      // ibv_send_flags
  uint64_t answered;  // bytes of a READ or atomic that came back; kAnswered: all

  static constexpr uint64_t kAnswered = UINT64_MAX;

  bool isInline() const { return (flags & IBV_SEND_INLINE) != 0; }
  bool isAtomic() const {
    return opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
  }
  bool isRead() const { return opcode == IBV_WR_RDMA_READ; }
  bool hasImmediate() const {
    return opcode == IBV_WR_RDMA_WRITE_WITH_IMM || opcode == IBV_WR_SEND_WITH_IMM;
  }
  ibv_sge* pieces() { return reinterpret_cast<ibv_sge*>(this + 1); }
  uint8_t* inlined() { return reinterpret_cast<uint8_t*>(this + 1); }
  std::span<const ibv_sge> pieceList() { return {pieces(), pieceCount}; }
};
static_assert(sizeof(SendEntry) == 64);

struct PostCounts {
  Count posts, requests, signalled, inlined, pieces, doorbells, ticks;
  Count writes, writeBytes, immediateWrites, immediateWriteBytes, reads, readBytes, sends,
      sendBytes, atomics;
};

class SendRing {
 public:
  SendRing(uint32_t entries, uint32_t pieces, uint32_t inlineBytes, bool signalsAll);

  uint32_t room() const { return count_; }
  uint32_t mostPieces() const { return mostPieces_; }
  uint32_t mostInline() const { return mostInline_; }

  // --- Posting; with `posting` held ---

  SpinLock posting;
  // 0, or an errno: nothing was taken. Taken requests are seen by the engine when published.
  int take(const ibv_send_wr& request);
  // The next entry, to be filled; null: no room.
  SendEntry* claim();
  void finish(SendEntry& entry);  // counts it, and goes on to the next
  void publish() { tail_.store(filled_, std::memory_order_release); }
  void abandon() { filled_ = tail_.load(std::memory_order_relaxed); }
  PostCounts counts;

  // --- The engine ---

  uint64_t published() const { return tail_.load(std::memory_order_acquire); }
  SendEntry& at(uint64_t number);
  bool isSignalled(const SendEntry& entry) const {
    return signalsAll_ || (entry.flags & IBV_SEND_SIGNALED) != 0;
  }

  // --- Polling ---

  void free(uint64_t upTo) { freed_.store(upTo, std::memory_order_release); }
  void reset();

 private:
  void count(const SendEntry& entry);

  const uint32_t mostPieces_, mostInline_;
  const bool signalsAll_;
  uint32_t count_;   // a power of two
  uint32_t stride_;  // in words
  std::vector<uint64_t> words_;
  uint64_t filled_ = 0;  // under `posting`
  alignas(64) std::atomic<uint64_t> tail_{0};
  alignas(64) std::atomic<uint64_t> freed_{0};
};

}  // namespace peerlane::softhca
