// SPDX-License-Identifier: Apache-2.0
//
// PostedList: the pieces of one list message as one side posts it: the arguments of its launches,
// the regions that the pieces lie in, and the shape that both sides compare. Made by one thread,
// then immutable.
#pragma once

#include <cstdint>
#include <vector>

#include "peerlane/memory/region_table.h"
#include "peerlane/program/device/step_list.h"

namespace peerlane {

// The shape of a list of no pieces, and of one that has a piece more: docs/wire.md.
uint64_t shapeBegin(uint64_t count);
uint64_t shapeWith(uint64_t shape, uint64_t bytes);
// The shape as it is sent: below 2^63, so that no word of it is mistaken for poison.
uint64_t shapeEnd(uint64_t shape);

class PostedList {
 public:
  PostedList(bool isSend, size_t count);

  // Requires: the range lies in the region. kInvalidArgument: more regions than a receive may name.
  Status add(RegionRecord& region, uint64_t offset, uint64_t bytes);
  // Call it after the last piece. kInvalidArgument: pieces of a receive overlap.
  Status close();

  // Each region once; valid as long as their gates are held.
  const std::vector<RegionRecord*>& regions() const { return regions_; }
  size_t count() const { return pieces_.size(); }
  uint64_t bytes() const { return bytes_; }
  uint64_t shape() const { return shape_; }
  // Of a send: where the pieces are.
  const std::vector<StepPiece>& pieces() const { return pieces_; }
  // Of a receive: the same in words for the sender's device (program/device/piece_names.h).
  const std::vector<uint64_t>& words() const { return words_; }

 private:
  size_t indexOf(RegionRecord& region);
  Status checkOverlaps() const;

  const bool isSend_;
  std::vector<RegionRecord*> regions_;
  std::vector<StepPiece> pieces_;
  std::vector<uint64_t> words_;  // places alone, until it is closed
  uint64_t bytes_ = 0;
  uint64_t shape_;
};

}  // namespace peerlane
