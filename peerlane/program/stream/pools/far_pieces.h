// SPDX-License-Identifier: Apache-2.0
//
// FarPieces: the descriptors of a long list in pinned memory, where the kernel reads them: pieces,
// and after them the tile ends. Whoever lowers a list for one post writes them there at once, and
// they are copied no more. Gives the memory back unless it is taken over. External synchronization
// required.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "peerlane/core/status.h"
#include "peerlane/program/kernel/copy/copy_kernel.h"
#include "peerlane/program/stream/pools/pinned_pool.h"

namespace peerlane::stream {

class FarPieces {
 public:
  FarPieces() = default;
  ~FarPieces() { clear(); }
  FarPieces(const FarPieces&) = delete;
  FarPieces& operator=(const FarPieces&) = delete;

  // Room for so many; once. `pool` outlives it.
  Status open(PinnedPool& pool, size_t most) {
    PEERLANE_ASSIGN(block_, pool.take(most * (sizeof(kernel::CopyPiece) + sizeof(uint64_t))));
    pool_ = &pool;
    most_ = most;
    return Status::ok();
  }
  // Writes piece after piece. A value of its own, because the compiler must assume that a piece
  // changes a member.
  struct Writer {
    kernel::CopyPiece* piece;
    uint64_t* end;
    uint64_t tiles = 0;

    // Requires: room.
    void add(const kernel::CopyPiece& next) {
      tiles += copyTiles(next.bytes);
      *piece++ = next;
      *end++ = tiles;
    }
  };
  Writer begin() { return {first(), ends()}; }
  void finish(const Writer& written) {
    count_ = static_cast<size_t>(written.piece - first());
    tiles_ = written.tiles;
  }
  bool empty() const { return count_ == 0; }
  std::span<const kernel::CopyPiece> pieces() const { return {first(), count_}; }
  kernel::PieceList list() const {
    return {.pieces = first(), .tileEnds = ends(), .count = count_, .tiles = tiles_, .isFar = true};
  }
  void clear() {
    if (block_.data != nullptr) pool_->giveBack(takeOver());
  }
  // The memory, which its new owner gives back to the pool after the kernel has read the list.
  PinnedBlock takeOver() {
    count_ = 0;
    return std::exchange(block_, {});
  }

 private:
  kernel::CopyPiece* first() const { return reinterpret_cast<kernel::CopyPiece*>(block_.data); }
  uint64_t* ends() const { return reinterpret_cast<uint64_t*>(first() + most_); }

  PinnedPool* pool_ = nullptr;
  PinnedBlock block_;
  size_t most_ = 0;
  size_t count_ = 0;
  uint64_t tiles_ = 0;
};

}  // namespace peerlane::stream
