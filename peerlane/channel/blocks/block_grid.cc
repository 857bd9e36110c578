// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/blocks/block_grid.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <vector>

namespace peerlane {
namespace {

uint64_t distance(uint64_t a, uint64_t b) {
  return a < b ? b - a : a - b;
}

// One side of a grid: place i is at base + i * stride.
class Axis {
 public:
  // The largest stride that fits some of the blocks; the others may show that it is too large.
  static Axis guess(std::span<const Block> blocks, uint64_t Block::*offset) {
    constexpr size_t kLooks = 32;
    const uint64_t first = blocks[0].*offset;
    uint64_t stride = 0;
    for (size_t i = 1; i < kLooks; ++i) {
      const size_t spread = blocks.size() * i / kLooks;
      stride = std::gcd(stride, distance(blocks[i].*offset, first));
      stride = std::gcd(stride, distance(blocks[spread].*offset, first));
    }
    return {first, stride == 0 ? blocks[0].bytes : stride};
  }

  // Blocks of `bytes` at numbers below the limit lie inside a region of `regionBytes`.
  bool setLimit(uint64_t regionBytes, uint64_t bytes) {
    if (regionBytes < base_ || regionBytes - base_ < bytes) return false;
    limit_ = (regionBytes - base_ - bytes) / stride_ + 1;
    return limit_ <= UINT32_MAX;
  }
  uint64_t base() const { return base_; }
  uint64_t stride() const { return stride_; }
  uint64_t limit() const { return limit_; }

  // The number of the place at `offset`; what is no place has no number below the limit: the
  // product with the inverse of the stride's odd part is the quotient where the division has no
  // rest, and above all quotients where it has one (Hacker's Delight, 10-17).
  uint64_t numberOf(uint64_t offset) const {
    return std::rotr((offset - base_) * inverse_, shift_);
  }

 private:
  Axis(uint64_t offset, uint64_t stride)
      : base_(offset % stride),
        stride_(stride),
        shift_(std::countr_zero(stride)),
        inverse_(inverseOf(stride >> shift_)) {}

  // Modulo 2^64. Each step doubles the number of bits that are right.
  static uint64_t inverseOf(uint64_t odd) {
    uint64_t inverse = odd;  // three bits
    for (int bits = 3; bits < 64; bits *= 2) inverse *= 2 - odd * inverse;
    return inverse;
  }

  uint64_t base_;
  uint64_t stride_;
  int shift_;
  uint64_t inverse_;
  uint64_t limit_ = 0;
};

// In any order, once each. False also where the numbers are so far apart that looking is not worth
// it.
bool areDistinct(const std::vector<uint32_t>& numbers) {
  constexpr uint64_t kPlacesPerBlock = 1024;
  uint32_t least = numbers[0];
  uint32_t most = numbers[0];
  uint32_t descents = 0;
  for (size_t i = 1; i < numbers.size(); ++i) {
    descents += numbers[i] <= numbers[i - 1];
    least = std::min(least, numbers[i]);
    most = std::max(most, numbers[i]);
  }
  if (descents == 0) return true;
  const uint64_t places = uint64_t{most} - least + 1;
  if (places > numbers.size() * kPlacesPerBlock) return false;
  std::vector<uint64_t> taken(places / 64 + 1, 0);
  uint64_t twice = 0;
  for (const uint32_t number : numbers) {
    const uint32_t place = number - least;
    uint64_t& word = taken[place / 64];
    twice |= word >> (place % 64) & 1;
    word |= uint64_t{1} << (place % 64);
  }
  return twice == 0;
}

// Adjoining blocks would be one piece.
bool hasFewPieces(const std::vector<uint32_t>& to, const std::vector<uint32_t>& from) {
  uint32_t pieces = 1;
  for (size_t i = 1; i < to.size(); ++i)
    pieces += to[i] - to[i - 1] != 1 || from[i] - from[i - 1] != 1;
  return pieces < kLeastGridBlocks;
}

}  // namespace

bool findGrid(Direction direction, std::span<const Block> blocks, uint64_t localBytes,
              uint64_t remoteBytes, CopyLayout& layout) {
  if (blocks.size() < kLeastGridBlocks || blocks.size() > UINT32_MAX) return false;
  const Block& first = blocks[0];
  if (first.bytes == 0) return false;
  Axis local = Axis::guess(blocks, &Block::localOffset);
  Axis remote = Axis::guess(blocks, &Block::remoteOffset);
  const Axis& written = direction == Direction::kPut ? remote : local;
  if (written.stride() < first.bytes) return false;
  if (!local.setLimit(localBytes, first.bytes) || !remote.setLimit(remoteBytes, first.bytes))
    return false;
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
    }
    if (misfits != 0) return false;
  }
  const bool isPut = direction == Direction::kPut;
  std::vector<uint32_t>& to = isPut ? there : here;
  std::vector<uint32_t>& from = isPut ? here : there;
  const bool adjoin = local.stride() == first.bytes && remote.stride() == first.bytes;
  if (!areDistinct(to) || (adjoin && hasFewPieces(to, from))) return false;
  const Axis& source = isPut ? local : remote;
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
