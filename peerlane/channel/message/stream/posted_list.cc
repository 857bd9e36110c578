// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/message/stream/posted_list.h"

#include <algorithm>
#include <string>

#include "peerlane/program/device/piece_names.h"

namespace peerlane {
namespace {

// One to one, and every bit of `value` reaches all of the result's.
uint64_t mixed(uint64_t value) {
  value = (value ^ value >> 32) * 0x9e3779b97f4a7c15u;
  value = (value ^ value >> 29) * 0xd6e8feb86659fd93u;
  return value ^ value >> 32;
}

}  // namespace

uint64_t shapeBegin(uint64_t count) {
  return mixed(count);
}
uint64_t shapeWith(uint64_t shape, uint64_t bytes) {
  return mixed(shape ^ bytes);
}
uint64_t shapeEnd(uint64_t shape) {
  return shape >> 1;
}

PostedList::PostedList(bool isSend, size_t count) : isSend_(isSend), shape_(shapeBegin(count)) {
  pieces_.reserve(count);
  if (!isSend_) words_.reserve(count + 8);
}

// Neighbours mostly share their region.
size_t PostedList::indexOf(RegionRecord& region) {
  const auto found = std::find(regions_.rbegin(), regions_.rend(), &region);
  if (found != regions_.rend()) return static_cast<size_t>(regions_.rend() - found) - 1;
  regions_.push_back(&region);
  return regions_.size() - 1;
}

Status PostedList::add(RegionRecord& region, uint64_t offset, uint64_t bytes) {
  const size_t index = indexOf(region);
  if (!isSend_) {
    if (index >= PieceNames::kMostRegions)
      return Status(Code::kInvalidArgument,
                    "a list that is received into more than " +
                        std::to_string(PieceNames::kMostRegions) +
                        " regions; register larger ones, or receive several lists");
    if (offset >> PieceNames::kRegionBit != 0)
      return Status(Code::kInvalidArgument,
                    "a piece at offset " + std::to_string(offset) +
                        " of its region; on streams pieces are received below 2^48");
    words_.push_back(PieceNames::place(index, offset));
  }
  pieces_.push_back({region.base + offset, bytes});
  bytes_ += bytes;
  shape_ = shapeWith(shape_, bytes);
  return Status::ok();
}

Status PostedList::checkOverlaps() const {
  const auto endsBefore = [](const StepPiece& one, const StepPiece& next) {
    return one.from + one.bytes <= next.from;
  };
  const auto overlap = [&](const std::vector<StepPiece>& pieces) {
    return std::adjacent_find(pieces.begin(), pieces.end(),
                              [&](const StepPiece& one, const StepPiece& next) {
                                return !endsBefore(one, next);
                              }) != pieces.end();
  };
  if (!overlap(pieces_)) return Status::ok();
  std::vector<StepPiece> sorted = pieces_;
  std::sort(sorted.begin(), sorted.end(),
            [](const StepPiece& a, const StepPiece& b) { return a.from < b.from; });
  if (!overlap(sorted)) return Status::ok();
  return Status(Code::kInvalidArgument,
                "pieces that are received overlap; which of them stays would be chance");
}

Status PostedList::close() {
  shape_ = shapeEnd(shape_);
  if (isSend_) return Status::ok();
  PEERLANE_RETURN_IF_ERROR(checkOverlaps());
  std::vector<uint64_t> names;
  names.reserve(2 * regions_.size());
  for (const RegionRecord* region : regions_) {
    names.push_back(region->allocation);
    names.push_back(region->generation);
  }
  words_.insert(words_.begin(), names.begin(), names.end());
  return Status::ok();
}

}  // namespace peerlane
