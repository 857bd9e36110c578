// SPDX-License-Identifier: Apache-2.0
#include "tests/fake/software_hca/hca_send_ring.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

namespace peerlane::softhca {
namespace {

uint32_t wordsFor(uint32_t pieces, uint32_t inlineBytes) {
  const size_t behind = std::max<size_t>(pieces * sizeof(ibv_sge), inlineBytes);
  return static_cast<uint32_t>((sizeof(SendEntry) + behind + 7) / 8);
}

}  // namespace

SendRing::SendRing(uint32_t entries, uint32_t pieces, uint32_t inlineBytes, bool signalsAll)
    : mostPieces_(pieces),
      mostInline_(inlineBytes),
      signalsAll_(signalsAll),
      count_(std::bit_ceil(std::max(entries, 1u))),
      stride_(wordsFor(pieces, inlineBytes)),
      words_(size_t{count_} * stride_) {}

SendEntry& SendRing::at(uint64_t number) {
  return *reinterpret_cast<SendEntry*>(&words_[(number & (count_ - 1)) * stride_]);
}

SendEntry* SendRing::claim() {
  if (filled_ - freed_.load(std::memory_order_acquire) >= count_) return nullptr;
  return &at(filled_);
}

int SendRing::take(const ibv_send_wr& request) {
  SendEntry* entry = claim();
  if (entry == nullptr) return ENOMEM;
  const bool isInline = (request.send_flags & IBV_SEND_INLINE) != 0;
  const auto pieces = static_cast<uint32_t>(request.num_sge);
  if (request.num_sge < 0 || pieces > mostPieces_) return EINVAL;
  entry->id = request.wr_id;
  entry->opcode = static_cast<uint8_t>(request.opcode);
  entry->flags = static_cast<uint8_t>(request.send_flags);
  entry->immediate = request.imm_data;
  entry->answered = 0;
  uint32_t length = 0;
  for (uint32_t i = 0; i < pieces; ++i) length += request.sg_list[i].length;
  entry->length = length;
  switch (request.opcode) {
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      if (isInline || length != 8) return EINVAL;
      entry->remoteAddress = request.wr.atomic.remote_addr;
      entry->key = request.wr.atomic.rkey;
      entry->compareAdd = request.wr.atomic.compare_add;
      entry->swap = request.wr.atomic.swap;
      break;
    case IBV_WR_RDMA_READ:
      if (isInline) return EINVAL;
      [[fallthrough]];
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      entry->remoteAddress = request.wr.rdma.remote_addr;
      entry->key = request.wr.rdma.rkey;
      break;
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM: break;
    default: return EINVAL;
  }
  if (isInline) {
    if (length > mostInline_) return EINVAL;
    uint8_t* to = entry->inlined();
    for (uint32_t i = 0; i < pieces; to += request.sg_list[i++].length)
      memcpy(to, reinterpret_cast<const void*>(request.sg_list[i].addr), request.sg_list[i].length);
    entry->pieceCount = 0;
  } else {
    for (uint32_t i = 0; i < pieces; ++i) entry->pieces()[i] = request.sg_list[i];
    entry->pieceCount = static_cast<uint16_t>(pieces);
  }
  finish(*entry);
  return 0;
}

void SendRing::finish(SendEntry& entry) {
  count(entry);
  ++filled_;
}

void SendRing::count(const SendEntry& entry) {
  counts.requests.add(1);
  counts.pieces.add(entry.pieceCount);
  if (isSignalled(entry)) counts.signalled.add(1);
  if (entry.isInline()) counts.inlined.add(1);
  switch (entry.opcode) {
    case IBV_WR_RDMA_WRITE: counts.writes.add(1); return counts.writeBytes.add(entry.length);
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      counts.immediateWrites.add(1);
      return counts.immediateWriteBytes.add(entry.length);
    case IBV_WR_RDMA_READ: counts.reads.add(1); return counts.readBytes.add(entry.length);
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM: counts.sends.add(1); return counts.sendBytes.add(entry.length);
    default: return counts.atomics.add(1);
  }
}

void SendRing::reset() {
  filled_ = 0;
  tail_ = 0;
  freed_ = 0;
}

}  // namespace peerlane::softhca
