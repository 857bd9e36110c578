// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/blocks/granule_table.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "peerlane/core/counted_list.h"
#include "peerlane/core/spare_vector.h"

namespace peerlane {
namespace {

// To clear and to look at so many takes less time than to sort a block.
constexpr uint64_t kMostGranulesPerBlock = 6;

// Fewer than an `int` counts.
constexpr uint64_t kMostGranules = uint64_t{1} << 30;
// The granules of each target have so many empty ones behind them.
constexpr uint64_t kAfter = 2;

uint64_t targetsOf(const WrittenExtent& extent) {
  return uint64_t{extent.mostTo} - extent.leastTo + 1;
}

uint64_t granulesOf(const WrittenExtent& extent) {
  return ((extent.last - extent.first) >> extent.granuleShift()) + 1;
}

// A block: in the lower half its place in the granule, and one; in the upper half its bytes. 0: no
// block begins in the granule.
template <typename Entry>
constexpr int kHalf = static_cast<int>(sizeof(Entry)) * 4;

template <typename Entry>
bool doFit(const WrittenExtent& extent) {
  return extent.most >> kHalf<Entry> == 0 && extent.granuleShift() < kHalf<Entry>;
}

// blockAt(i): a Segment of which the destination and the bytes are looked at. Here and below
// without a branch for each block: a mistaken guess would take longer than to write it.
template <typename Entry, typename BlockAt>
void fill(size_t blocks, const BlockAt& blockAt, const WrittenExtent& extent, Entry* const table) {
  const int shift = extent.granuleShift();
  const uint64_t inGranule = (uint64_t{1} << shift) - 1;
  const uint64_t perTarget = granulesOf(extent) + kAfter, first = extent.first;
  const TargetId firstTo = extent.leastTo;
  for (size_t i = 0; i < blocks; ++i) {
    const Segment& block = blockAt(i);
    const uint64_t place = block.toOffset - first;
    table[(block.to - firstTo) * perTarget + (place >> shift)] =
        static_cast<Entry>(block.bytes << kHalf<Entry> | ((place & inGranule) + 1));
  }
}

// How many blocks there are, and whether two of them meet.
struct Found {
  uint64_t blocks = 0;
  bool meet = false;
};

// In the granules of one target.
template <typename Entry>
void look(const Entry* const table, uint64_t granules, int shift, Found& found) {
  uint64_t begin = 0, end = 0, count = 0;  // of the granule; of the blocks before; of blocks
  unsigned meet = 0;
  for (uint64_t i = 0; i < granules; ++i, begin += uint64_t{1} << shift) {
    const uint64_t entry = table[i];
    const uint64_t at = begin + (entry & ((uint64_t{1} << kHalf<Entry>)-1));
    const bool isThere = entry != 0;
    meet |= unsigned{isThere} & unsigned{at < end};
    // Where there is none, the granule's begin, which changes nothing.
    end = std::max(end, at + (entry >> kHalf<Entry>));
    count += isThere;
  }
  found.blocks += count;
  found.meet |= meet != 0;
}

// The same where no block reaches beyond the second granule after its own: the compiler makes of it
// a loop of four granules at once, because none waits for the one before. Reads kAfter entries
// behind the last, which are empty.
void lookAtNeighbours(const uint32_t* const table, uint64_t granules, int shift, Found& found) {
  const int size = 1 << shift;
  int count = 0, meet = 0;
  // From the begin of the granule.
  const auto beginOf = [](uint32_t entry) {
    return entry != 0 ? static_cast<int>(entry & 0xffff) : INT32_MAX / 2;
  };
  for (uint64_t i = 0; i < granules; ++i) {
    const auto end = static_cast<int>((table[i] & 0xffff) + (table[i] >> 16));
    meet |= beginOf(table[i + 1]) + size < end;
    meet |= beginOf(table[i + 2]) + 2 * size < end;
    count += table[i] != 0;
  }
  found.blocks += static_cast<uint64_t>(count);
  found.meet |= meet != 0;
}

template <typename Entry, typename BlockAt>
bool doOverlapIn(size_t blocks, const BlockAt& blockAt, const WrittenExtent& extent) {
  const uint64_t granules = granulesOf(extent), targets = targetsOf(extent);
  const int shift = extent.granuleShift();
  std::vector<Entry> table = SpareVector<Entry>::takeFilled((granules + kAfter) * targets);
  std::fill_n(table.begin(), (granules + kAfter) * targets, Entry{0});
  fill(blocks, blockAt, extent, table.data());
  Found found;
  for (uint64_t i = 0; i < targets; ++i) {
    const Entry* const ofTarget = table.data() + i * (granules + kAfter);
    if constexpr (std::is_same_v<Entry, uint32_t>) {
      if (extent.most <= uint64_t{2} << shift) {
        lookAtNeighbours(ofTarget, granules, shift, found);
        continue;
      }
    }
    look(ofTarget, granules, shift, found);
  }
  SpareVector<Entry>::giveBack(std::move(table));
  return found.meet || found.blocks != blocks;
}

template <typename BlockAt>
bool doAnyOverlap(size_t blocks, const BlockAt& blockAt, const WrittenExtent& extent) {
  Steps::add(blocks + granulesOf(extent) * targetsOf(extent));
  return doFit<uint32_t>(extent) ? doOverlapIn<uint32_t>(blocks, blockAt, extent)
                                 : doOverlapIn<uint64_t>(blocks, blockAt, extent);
}

}  // namespace

bool GranuleTable::suits(const WrittenExtent& extent, size_t blocks) {
  const uint64_t most = std::min(blocks * kMostGranulesPerBlock, kMostGranules);
  return doFit<uint64_t>(extent) && granulesOf(extent) <= most &&
         (granulesOf(extent) + kAfter) * targetsOf(extent) <= most;
}

bool GranuleTable::doOverlap(const std::vector<Segment>& blocks, const WrittenExtent& extent) {
  return doAnyOverlap(
      blocks.size(), [at = blocks.data()](size_t i) -> const Segment& { return at[i]; }, extent);
}

bool GranuleTable::areApart(std::span<const uint32_t> places, uint64_t stride, uint64_t bytes) {
  uint32_t least = UINT32_MAX, most = 0;
  for (const uint32_t place : places) {
    least = std::min(least, place);
    most = std::max(most, place);
  }
  WrittenExtent extent;
  extent.leastTo = extent.mostTo = 0;
  extent.least = extent.most = bytes;
  extent.first = least * stride;
  extent.last = most * stride;
  const auto blockAt = [at = places.data(), stride, bytes](size_t i) {
    return Segment{.to = 0, .toOffset = at[i] * stride, .bytes = bytes};
  };
  return suits(extent, places.size()) && !doAnyOverlap(places.size(), blockAt, extent);
}

}  // namespace peerlane
