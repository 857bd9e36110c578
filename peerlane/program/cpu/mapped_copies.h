// SPDX-License-Identifier: Apache-2.0
//
// MappedCopies: how far a run has come with the mapped pieces of one op, and the next of them.
// Posting path: no allocation, no lock unless threads help, no call of the kernel unless asked to.
// External synchronization required.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "peerlane/program/cpu/host_copier.h"

namespace peerlane::cpu {

class MappedCopies {
 public:
  void restart() { *this = {}; }
  bool isAtStart() const { return piece_ == 0 && offset_ == 0; }

  // Copies as many bytes as the budget has, and takes them from it; pieces may be cut. Returns the
  // bytes copied. `bytes`: of all pieces. `copier`: makes the large copies; null: memcpy makes
  // them.
  uint64_t advance(std::span<const MappedPiece> pieces, uint64_t bytes, const HostCopier* copier,
                   uint64_t& budget);
  // The same for pieces with memory that may be cut at any time, so that the kernel copies; adds to
  // `copied`. False: some of it is not there any more, and what was copied last is not known.
  bool advanceByKernel(std::span<const MappedPiece> pieces, uint64_t& budget, uint64_t& copied);
  bool isAtEnd(std::span<const MappedPiece> pieces) const { return piece_ == pieces.size(); }

 private:
  bool copyByKernel(std::span<const MappedPiece> pieces, uint64_t most, uint64_t& copied);
  void pass(const MappedPiece& piece, uint64_t bytes);
  uint64_t copyPart(const MappedPiece& piece, const WholeCopy& whole, const HostCopier* copier,
                    uint64_t most);

  size_t piece_ = 0;
  uint64_t offset_ = 0;  // in that piece
};

}  // namespace peerlane::cpu
