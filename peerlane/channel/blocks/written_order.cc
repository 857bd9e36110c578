// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/blocks/written_order.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "peerlane/core/counted_list.h"

namespace peerlane {
namespace {

// Fewer blocks are sorted in less time than their digits are counted.
constexpr size_t kLeastByDigits = 64;
// Two digits are enough for most lists, and their counts stay in the second cache.
constexpr int kMostDigitBits = 13;

// Keys are sorted by their bits above a place: `digits` digits of `width` bits, the least first.
struct Digits {
  int placeBits;
  int digits;
  int width;

  size_t values() const { return size_t{1} << width; }
  size_t counts() const { return values() * static_cast<size_t>(digits); }
};

Digits digitsFor(int placeBits, int keyBits, size_t count) {
  const int widest = std::min(kMostDigitBits, static_cast<int>(std::bit_width(count)));
  // All of one width, so that none is sorted by for a bit or two.
  const int digits = (keyBits + widest - 1) / widest;
  return {placeBits, digits, digits == 0 ? 0 : (keyBits + digits - 1) / digits};
}

// Writes a key for each block, and counts their digits. kDigits: how many there are, or 0 for any
// number, which takes longer.
template <int kDigits>
void makeKeys(const std::vector<Segment>& blocks, const WrittenExtent& extent, const Digits& by,
              uint64_t* keys, uint32_t* counts) {
  const int digits = kDigits != 0 ? kDigits : by.digits;
  const int width = by.width, placeBits = by.placeBits;
  const uint64_t mask = by.values() - 1;
  const int granuleShift = extent.granuleShift(), granuleBits = extent.granuleBits();
  const uint64_t firstGranule = extent.first >> granuleShift;
  const unsigned firstTo = extent.leastTo;
  std::fill_n(counts, by.counts(), 0);
  for (size_t i = 0; i < blocks.size(); ++i) {
    const uint64_t granule = (blocks[i].toOffset >> granuleShift) - firstGranule;
    uint64_t rest = uint64_t{blocks[i].to - firstTo} << granuleBits | granule;
    keys[i] = rest << placeBits | i;
    uint32_t* ofDigit = counts;
    for (int digit = 0; digit < digits; ++digit, rest >>= width, ofDigit += mask + 1)
      ++ofDigit[rest & mask];
  }
}

// Moves the keys by the digit from bit `shift` on, and leaves the order of those with the same one.
void sortByDigit(const uint64_t* keys, size_t count, int shift, uint64_t mask, uint32_t* counts,
                 uint64_t* sorted) {
  std::exclusive_scan(counts, counts + mask + 1, counts, uint32_t{0});
  for (size_t i = 0; i < count; ++i) sorted[counts[keys[i] >> shift & mask]++] = keys[i];
}

}  // namespace

WrittenOrder::WrittenOrder(const std::vector<Segment>& blocks, const WrittenExtent& extent) {
  const int placeBits = std::bit_width(blocks.size() - 1);
  const int keyBits = extent.granuleBits() + extent.targetBits();
  // Keys that do not fit are of lists that span more than memories do, or that have more blocks
  // than are counted.
  if (blocks.size() < kLeastByDigits || placeBits > 32 || placeBits + keyBits > 64)
    byComparing(blocks);
  else
    byDigits(blocks, extent, placeBits, keyBits);
}

void WrittenOrder::byComparing(const std::vector<Segment>& blocks) {
  room_ = SpareVector<uint64_t>::takeFilled(blocks.size());
  const auto end = room_.begin() + static_cast<std::ptrdiff_t>(blocks.size());
  std::iota(room_.begin(), end, uint64_t{0});
  uint64_t compared = 0;
  std::sort(room_.begin(), end, [&](uint64_t a, uint64_t b) {
    ++compared;
    return blocks[a].to != blocks[b].to ? blocks[a].to < blocks[b].to
                                        : blocks[a].toOffset < blocks[b].toOffset;
  });
  Steps::add(compared);
  keys_ = room_.data();
}

void WrittenOrder::byDigits(const std::vector<Segment>& blocks, const WrittenExtent& extent,
                            int placeBits, int keyBits) {
  const size_t count = blocks.size();
  const Digits by = digitsFor(placeBits, keyBits, count);
  room_ = SpareVector<uint64_t>::takeFilled(2 * count);
  std::vector<uint32_t> counts = SpareVector<uint32_t>::takeFilled(by.counts());
  uint64_t* keys = room_.data();
  uint64_t* sorted = keys + count;
  const auto make = by.digits == 2 ? makeKeys<2> : makeKeys<0>;
  make(blocks, extent, by, keys, counts.data());
  for (int digit = 0; digit < by.digits; ++digit) {
    sortByDigit(keys, count, placeBits + digit * by.width, by.values() - 1,
                counts.data() + static_cast<size_t>(digit) * by.values(), sorted);
    std::swap(keys, sorted);
  }
  SpareVector<uint32_t>::giveBack(std::move(counts));
  Steps::add(count * (1 + static_cast<uint64_t>(by.digits)));
  keys_ = keys;
  places_ = (uint64_t{1} << placeBits) - 1;
}

}  // namespace peerlane
