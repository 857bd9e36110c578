// SPDX-License-Identifier: Apache-2.0
#include "tests/fake/software_hca/hca_builder.h"

#include <cerrno>
#include <cstring>

#include "tests/fake/software_hca/hca_context.h"
#include "tests/fake/software_hca/hca_queue_pair.h"

namespace peerlane::softhca {
namespace {

QueuePair& pairOf(ibv_qp_ex* pair) {
  return *static_cast<QueuePair*>(pair);
}

// What the last request began is complete once the next one begins.
void finishBuilt(QueuePair& pair) {
  if (pair.built != nullptr) pair.requests.finish(*pair.built);
  pair.built = nullptr;
}

SendEntry* begin(ibv_qp_ex* face, ibv_wr_opcode opcode, uint32_t key = 0, uint64_t address = 0) {
  QueuePair& pair = pairOf(face);
  finishBuilt(pair);
  if (pair.buildError != 0) return nullptr;
  SendEntry* entry = pair.requests.claim();
  if (entry == nullptr) {
    pair.buildError = ENOMEM;
    return nullptr;
  }
  *entry = {};
  entry->id = face->wr_id;
  entry->opcode = static_cast<uint8_t>(opcode);
  entry->flags = static_cast<uint8_t>(face->wr_flags & ~IBV_SEND_INLINE);
  entry->key = key;
  entry->remoteAddress = address;
  return pair.built = entry;
}

void setPieces(ibv_qp_ex* face, size_t count, const ibv_sge* pieces) {
  QueuePair& pair = pairOf(face);
  if (pair.built == nullptr) return;
  if (count > pair.requests.mostPieces()) {
    pair.buildError = EINVAL;
    return;
  }
  pair.built->pieceCount = static_cast<uint16_t>(count);
  pair.built->length = 0;
  for (size_t i = 0; i < count; ++i) {
    pair.built->pieces()[i] = pieces[i];
    pair.built->length += pieces[i].length;
  }
}

void setInline(ibv_qp_ex* face, size_t count, const ibv_data_buf* pieces) {
  QueuePair& pair = pairOf(face);
  if (pair.built == nullptr) return;
  size_t length = 0;
  for (size_t i = 0; i < count; ++i) length += pieces[i].length;
  if (length > pair.requests.mostInline()) {
    pair.buildError = EINVAL;
    return;
  }
  uint8_t* to = pair.built->inlined();
  for (size_t i = 0; i < count; to += pieces[i++].length)
    memcpy(to, pieces[i].addr, pieces[i].length);
  pair.built->length = static_cast<uint32_t>(length);
  pair.built->flags |= IBV_SEND_INLINE;
}

// The lock is passed from call to call, which the analysis of locks cannot follow.
void start(ibv_qp_ex* face) PEERLANE_NO_THREAD_SAFETY_ANALYSIS {
  QueuePair& pair = pairOf(face);
  pair.requests.posting.lock();
  pair.built = nullptr;
  pair.buildError = pair.maySend();
}

int complete(ibv_qp_ex* face) PEERLANE_NO_THREAD_SAFETY_ANALYSIS {
  QueuePair& pair = pairOf(face);
  finishBuilt(pair);
  const int failed = pair.buildError;
  if (failed != 0) {
    pair.requests.abandon();
  } else {
    pair.requests.counts.posts.add(1);
    pair.requests.publish();
    if (pair.context.ring(pair)) pair.requests.counts.doorbells.add(1);
  }
  pair.requests.posting.unlock();
  return failed;
}

void abandon(ibv_qp_ex* face) PEERLANE_NO_THREAD_SAFETY_ANALYSIS {
  QueuePair& pair = pairOf(face);
  pair.built = nullptr;
  pair.requests.abandon();
  pair.requests.posting.unlock();
}

}  // namespace

void fillBuilder(QueuePair& pair) {
  pair.wr_start = start;
  pair.wr_complete = complete;
  pair.wr_abort = abandon;
  pair.wr_rdma_write = [](ibv_qp_ex* face, uint32_t key, uint64_t address) {
    begin(face, IBV_WR_RDMA_WRITE, key, address);
  };
  pair.wr_rdma_write_imm = [](ibv_qp_ex* face, uint32_t key, uint64_t address, __be32 value) {
    if (SendEntry* entry = begin(face, IBV_WR_RDMA_WRITE_WITH_IMM, key, address))
      entry->immediate = value;
  };
  pair.wr_rdma_read = [](ibv_qp_ex* face, uint32_t key, uint64_t address) {
    begin(face, IBV_WR_RDMA_READ, key, address);
  };
  pair.wr_send = [](ibv_qp_ex* face) { begin(face, IBV_WR_SEND); };
  pair.wr_send_imm = [](ibv_qp_ex* face, __be32 value) {
    if (SendEntry* entry = begin(face, IBV_WR_SEND_WITH_IMM)) entry->immediate = value;
  };
  pair.wr_atomic_fetch_add = [](ibv_qp_ex* face, uint32_t key, uint64_t address, uint64_t add) {
    if (SendEntry* entry = begin(face, IBV_WR_ATOMIC_FETCH_AND_ADD, key, address))
      entry->compareAdd = add;
  };
  pair.wr_atomic_cmp_swp = [](ibv_qp_ex* face, uint32_t key, uint64_t address, uint64_t compare,
                              uint64_t swap) {
    if (SendEntry* entry = begin(face, IBV_WR_ATOMIC_CMP_AND_SWP, key, address)) {
      entry->compareAdd = compare;
      entry->swap = swap;
    }
  };
  pair.wr_set_sge = [](ibv_qp_ex* face, uint32_t key, uint64_t address, uint32_t length) {
    const ibv_sge piece{address, length, key};
    setPieces(face, 1, &piece);
  };
  pair.wr_set_sge_list = setPieces;
  pair.wr_set_inline_data = [](ibv_qp_ex* face, void* address, size_t length) {
    const ibv_data_buf piece{address, length};
    setInline(face, 1, &piece);
  };
  pair.wr_set_inline_data_list = setInline;
}

}  // namespace peerlane::softhca
