// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/blocks/block_grid.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include "peerlane/channel/blocks/granule_table.h"
#include "peerlane/channel/blocks/grid_axis.h"

namespace peerlane {
namespace {

uint64_t distance(uint64_t a, uint64_t b) {
  return a < b ? b - a : a - b;
}

constexpr size_t kLooks = 32;

// So few are looked at before the room for all numbers is made.
bool haveOneSize(std::span<const Block> blocks) {
  for (size_t i = 1; i < kLooks; ++i)
    if (blocks[i].bytes != blocks[0].bytes ||
        blocks[blocks.size() * i / kLooks].bytes != blocks[0].bytes)
      return false;
  return true;
}

// One side of a grid, inside its region.
class RegionAxis : public GridAxis {
 public:
  // The largest stride that fits some of the blocks; the others may show that it is too large.
  static RegionAxis guess(std::span<const Block> blocks, uint64_t Block::*offset) {
    const uint64_t first = blocks[0].*offset;
    uint64_t stride = 0;
    for (size_t i = 1; i < kLooks; ++i) {
      const size_t spread = blocks.size() * i / kLooks;
      stride = std::gcd(stride, distance(blocks[i].*offset, first));
      stride = std::gcd(stride, distance(blocks[spread].*offset, first));
    }
    if (stride == 0) stride = blocks[0].bytes;
    return {first % stride, stride};
  }

  // Blocks of `bytes` at numbers below the limit lie inside a region of `regionBytes`.
  bool setLimit(uint64_t regionBytes, uint64_t bytes) {
    if (regionBytes < base() || regionBytes - base() < bytes) return false;
    limit_ = (regionBytes - base() - bytes) / stride() + 1;
    return limit_ <= UINT32_MAX;
  }
  uint64_t limit() const { return limit_; }

 private:
  using GridAxis::GridAxis;

  uint64_t limit_ = 0;
};

// Which places have been taken: a bit for each of a region, or no bits yet where the region is so
// large that takeAll() does it, once the least and the greatest number are known.
class TakenPlaces {
 public:
  TakenPlaces(uint64_t limit, size_t blocks) {
    constexpr uint64_t kPlacesPerBlock = 64;
    if (limit <= blocks * kPlacesPerBlock) makeRoom(0, limit);
  }

  bool areSeen() const { return places_ != 0; }
  // Numbers from the limit on share one more bit; whoever has one finds no grid anyway.
  void take(uint64_t number) {
    const uint64_t place = std::min(number - least_, places_);
    uint64_t& word = taken_[place / 64];
    twice_ |= word >> (place % 64) & 1;
    word |= uint64_t{1} << (place % 64);
  }
  bool isOneTwice() const { return twice_ != 0; }

  // All at once. False also where the numbers are so far apart that looking is not worth it.
  bool takeAll(const std::vector<uint32_t>& numbers) {
    constexpr uint64_t kPlacesPerBlock = 1024;
    const bool ascends =
        std::adjacent_find(numbers.begin(), numbers.end(), std::greater_equal<>()) == numbers.end();
    if (ascends) return true;
    const auto [least, most] = std::minmax_element(numbers.begin(), numbers.end());
    const uint64_t places = uint64_t{*most} - *least + 1;
    if (places > numbers.size() * kPlacesPerBlock) return false;
    makeRoom(*least, places);
    for (const uint32_t number : numbers) take(number);
    return true;
  }

 private:
  void makeRoom(uint64_t least, uint64_t places) {
    least_ = least;
    places_ = places;
    taken_.assign(places / 64 + 1, 0);
  }

  std::vector<uint64_t> taken_;
  uint64_t least_ = 0;
  uint64_t places_ = 0;
  uint64_t twice_ = 0;
};

// The distance of two numbers whose blocks adjoin; 0: no two do.
uint32_t adjoiningAt(uint64_t stride, uint64_t bytes) {
  return bytes % stride == 0 ? static_cast<uint32_t>(bytes / stride) : 0;
}

// Adjoining blocks would be one piece.
bool hasFewPieces(const std::vector<uint32_t>& to, uint32_t toNext,
                  const std::vector<uint32_t>& from, uint32_t fromNext) {
  uint32_t pieces = 1;
  for (size_t i = 1; i < to.size() && pieces < kLeastGridBlocks; ++i)
    pieces += to[i] - to[i - 1] != toNext || from[i] - from[i - 1] != fromNext;
  return pieces < kLeastGridBlocks;
}

// Of a stride below the size of the blocks, which may overlap at different places. Kernels copy
// small blocks by accesses of the width that every place allows, so those lie on whole words.
bool mayOverlap(uint64_t localStride, uint64_t remoteStride, uint64_t bytes) {
  constexpr uint64_t kSmallBlock = 4096, kWord = 16;
  return bytes >= kSmallBlock || (localStride % kWord == 0 && remoteStride % kWord == 0);
}

}  // namespace

bool findGrid(Direction direction, std::span<const Block> blocks, uint64_t localBytes,
              uint64_t remoteBytes, CopyLayout& layout) {
  if (blocks.size() < kLeastGridBlocks || blocks.size() > UINT32_MAX) return false;
  const Block& first = blocks[0];
  if (first.bytes == 0 || !haveOneSize(blocks)) return false;
  RegionAxis local = RegionAxis::guess(blocks, &Block::localOffset);
  RegionAxis remote = RegionAxis::guess(blocks, &Block::remoteOffset);
  const RegionAxis& written = direction == Direction::kPut ? remote : local;
  const bool isDense = written.stride() < first.bytes;
  if (isDense && !mayOverlap(local.stride(), remote.stride(), first.bytes)) return false;
  if (!local.setLimit(localBytes, first.bytes) || !remote.setLimit(remoteBytes, first.bytes))
    return false;
  const bool isPut = direction == Direction::kPut;
  TakenPlaces taken(isDense ? UINT64_MAX : written.limit(), blocks.size());
  const bool sees = taken.areSeen();
  std::vector<uint32_t> here(blocks.size());
  std::vector<uint32_t> there(blocks.size());
  // In runs without a branch: what is wrong is looked at once in so many blocks.
  constexpr size_t kRun = 256;
  for (size_t begin = 0; begin < blocks.size(); begin += kRun) {
    const size_t end = std::min(begin + kRun, blocks.size());
    unsigned misfits = 0;
    for (size_t i = begin; i < end; ++i) {
      const Block& block = blocks[i];
      const uint64_t mine = local.numberOf(block.localOffset);
      const uint64_t yours = remote.numberOf(block.remoteOffset);
      misfits |= unsigned{block.local != first.local} | unsigned{block.remote != first.remote} |
                 unsigned{block.bytes != first.bytes} | unsigned{mine >= local.limit()} |
                 unsigned{yours >= remote.limit()};
      here[i] = static_cast<uint32_t>(mine);
      there[i] = static_cast<uint32_t>(yours);
      if (sees) taken.take(isPut ? yours : mine);
    }
    if (misfits != 0) return false;
  }
  std::vector<uint32_t>& to = isPut ? there : here;
  std::vector<uint32_t>& from = isPut ? here : there;
  const RegionAxis& source = isPut ? local : remote;
  const uint32_t toNext = adjoiningAt(written.stride(), first.bytes);
  const uint32_t fromNext = adjoiningAt(source.stride(), first.bytes);
  if (isDense) {
    if (!GranuleTable::areApart(to, written.stride(), first.bytes)) return false;
  } else if ((!sees && !taken.takeAll(to)) || taken.isOneTwice()) {
    return false;
  }
  if (toNext != 0 && fromNext != 0 && hasFewPieces(to, toNext, from, fromNext)) return false;
  layout.kind = CopyLayout::Kind::kNumbered;
  layout.first.toOffset = written.base();
  layout.first.fromOffset = source.base();
  layout.first.bytes = first.bytes;
  layout.toStride = written.stride();
  layout.fromStride = source.stride();
  layout.toLimit = written.limit();
  layout.fromLimit = source.limit();
  layout.count = blocks.size();
  layout.toNumbers = std::move(to);
  layout.fromNumbers = std::move(from);
  return true;
}

}  // namespace peerlane
