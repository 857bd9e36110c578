// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/cpu/mapped_copies.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "peerlane/os/mappings/nofault_copy.h"

namespace peerlane::cpu {
namespace {

constexpr size_t kPiecesAtOnce = 64;  // of one call of the kernel

}  // namespace

uint64_t MappedCopies::advance(std::span<const MappedPiece> pieces, uint64_t bytes,
                               const HostCopier* copier, uint64_t& budget) {
  const HostCopier* const large = copier != nullptr && bytes >= copier->least() ? copier : nullptr;
  const WholeCopy whole{bytes, pieces.size()};
  uint64_t copied = 0;
  while (piece_ < pieces.size() && copied < budget) {
    // As many whole pieces as the budget allows, for the threads that help.
    size_t count = 0;
    uint64_t slice = 0;
    if (large != nullptr && offset_ == 0)
      while (piece_ + count < pieces.size() &&
             pieces[piece_ + count].bytes <= budget - copied - slice)
        slice += pieces[piece_ + count++].bytes;
    if (count != 0) {
      large->copy(whole, pieces.subspan(piece_, count), slice);
      piece_ += count;
    } else {
      slice = copyPart(pieces[piece_], whole, large, budget - copied);
    }
    copied += slice;
  }
  budget -= copied;
  return copied;
}

bool MappedCopies::advanceByKernel(std::span<const MappedPiece> pieces, uint64_t& budget,
                                   uint64_t& copied) {
  bool isThere = true;
  while (isThere && piece_ < pieces.size() && budget != 0) {
    uint64_t moved = 0;
    isThere = copyByKernel(pieces, budget, moved);
    copied += moved;
    budget -= moved;
  }
  return isThere;
}

// Some pieces by one call.
bool MappedCopies::copyByKernel(std::span<const MappedPiece> pieces, uint64_t most,
                                uint64_t& copied) {
  std::array<IoSlice, kPiecesAtOnce> from;
  std::array<IoSlice, kPiecesAtOnce> to;
  size_t count = 0;
  uint64_t wanted = 0;
  for (uint64_t begin = offset_;
       count < kPiecesAtOnce && piece_ + count < pieces.size() && wanted < most; begin = 0) {
    const MappedPiece& piece = pieces[piece_ + count];
    const uint64_t bytes = std::min(piece.bytes - begin, most - wanted);
    from[count] = {const_cast<std::byte*>(piece.from) + begin, bytes};
    to[count++] = {piece.to + begin, bytes};
    wanted += bytes;
  }
  // The kernel makes both accesses: this finds a destination that is gone as well.
  if (nofaultRead(std::span(to).first(count), std::span(from).first(count)) != wanted) return false;
  for (size_t i = 0; i < count; ++i) pass(pieces[piece_], from[i].bytes);
  copied = wanted;
  return true;
}

void MappedCopies::pass(const MappedPiece& piece, uint64_t bytes) {
  offset_ += bytes;
  if (offset_ != piece.bytes) return;
  ++piece_;
  offset_ = 0;
}

uint64_t MappedCopies::copyPart(const MappedPiece& piece, const WholeCopy& whole,
                                const HostCopier* copier, uint64_t most) {
  const MappedPiece part{piece.to + offset_, piece.from + offset_,
                         std::min(piece.bytes - offset_, most)};
  if (copier != nullptr)
    copier->copy(whole, {&part, 1}, part.bytes);
  else
    std::memcpy(part.to, part.from, part.bytes);
  pass(piece, part.bytes);
  return part.bytes;
}

}  // namespace peerlane::cpu
