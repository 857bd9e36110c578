// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/cpu/mapped_copies.h"

#include <algorithm>
#include <cstring>

#include "peerlane/os/mappings/nofault_copy.h"

namespace peerlane::cpu {

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

bool MappedCopies::advanceByKernel(const MappedPiece& piece, uint64_t& budget, uint64_t& copied) {
  const uint64_t bytes = std::min(piece.bytes - offset_, budget);
  if (bytes == 0) return true;
  const IoSlice from{const_cast<std::byte*>(piece.from) + offset_, bytes};
  const IoSlice to{piece.to + offset_, bytes};
  // The kernel makes both accesses: this finds a destination that is gone as well.
  if (nofaultRead({&to, 1}, {&from, 1}) != bytes) return false;
  offset_ += bytes;
  budget -= bytes;
  copied += bytes;
  if (offset_ == piece.bytes) {
    ++piece_;
    offset_ = 0;
  }
  return true;
}

uint64_t MappedCopies::copyPart(const MappedPiece& piece, const WholeCopy& whole,
                                const HostCopier* copier, uint64_t most) {
  const MappedPiece part{piece.to + offset_, piece.from + offset_,
                         std::min(piece.bytes - offset_, most)};
  if (copier != nullptr)
    copier->copy(whole, {&part, 1}, part.bytes);
  else
    std::memcpy(part.to, part.from, part.bytes);
  offset_ += part.bytes;
  if (offset_ == piece.bytes) {
    ++piece_;
    offset_ = 0;
  }
  return part.bytes;
}

}  // namespace peerlane::cpu
