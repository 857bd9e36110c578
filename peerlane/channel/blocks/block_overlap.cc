// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/blocks/block_overlap.h"

#include <cstddef>
#include <optional>
#include <string>

#include "peerlane/channel/blocks/granule_table.h"
#include "peerlane/channel/blocks/grid_axis.h"
#include "peerlane/channel/blocks/written_order.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {
namespace {

// Blocks of one size on a grid (pages), in any order: a bit for each place between the first and
// the last tells whether two meet. Nothing when the list is not of that kind.
std::optional<bool> overlapOnGrid(const std::vector<Segment>& blocks, const WrittenExtent& grid) {
  // To clear so many bits takes as long as to sort one segment.
  constexpr uint64_t kBitsPerSegment = 1024;
  if (!grid.isUniform()) return {};
  const uint64_t places = (grid.last - grid.first) / grid.least + 1;
  if (places > blocks.size() * kBitsPerSegment) return {};
  const GridAxis axis(grid.first, grid.least);
  std::vector<bool> taken(places, false);
  for (const Segment& block : blocks) {
    const uint64_t place = axis.numberOf(block.toOffset);
    if (place >= places) return {};
    if (taken[place]) return true;
    taken[place] = true;
  }
  return false;
}

// Callers know their blocks by the place in the list.
Status overlapOf(const std::vector<Segment>& blocks, size_t one, size_t other) {
  const auto [first, second] = std::minmax(one, other);
  return Status(Code::kInvalidArgument,
                "blocks " + std::to_string(first) + " and " + std::to_string(second) +
                    " of the list (from 0) overlap at their destination: offset " +
                    std::to_string(blocks[first].toOffset) + " + " +
                    std::to_string(blocks[first].bytes) + " bytes, and offset " +
                    std::to_string(blocks[second].toOffset));
}

// Bytes of this process that are read or written.
struct Range {
  const std::byte* begin;
  const std::byte* end;
  bool isSource;
};

// A source has bytes of a destination.
bool doMeet(std::vector<Range> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  const std::byte* sourceEnd = nullptr;
  const std::byte* destinationEnd = nullptr;
  for (const Range& range : ranges) {
    const std::byte* otherEnd = range.isSource ? destinationEnd : sourceEnd;
    if (otherEnd != nullptr && range.begin < otherEnd) return true;
    const std::byte*& end = range.isSource ? sourceEnd : destinationEnd;
    end = std::max(end, range.end);
  }
  return false;
}

std::vector<Range> rangesOfRegions(const BlockList& blocks) {
  std::vector<Range> ranges;
  ranges.reserve(blocks.locals.size() + blocks.remotes.size());
  for (const auto& local : blocks.locals)
    ranges.push_back({local->base, local->base + local->bytes, blocks.isPut()});
  for (const RemoteRegion& remote : blocks.remotes) {
    const RemoteMemory& memory = remote.slot()->region->memory;
    ranges.push_back({memory.mapped, memory.mapped + memory.grant.bytes, !blocks.isPut()});
  }
  return ranges;
}

std::vector<Range> rangesOfBlocks(const BlockList& blocks) {
  const auto baseOf = [&](TargetId target) -> const std::byte* {
    return blocks.isRemote(target)
               ? blocks.remotes[target - blocks.firstRemote].slot()->region->memory.mapped
               : blocks.locals[target - blocks.firstLocal]->base;
  };
  std::vector<Range> ranges;
  blocks.layout.eachBlock([&](const Segment& block) {
    const std::byte* to = baseOf(block.to) + block.toOffset;
    const std::byte* from = baseOf(block.from) + block.fromOffset;
    ranges.push_back({to, to + block.bytes, false});
    ranges.push_back({from, from + block.bytes, true});
  });
  return ranges;
}

}  // namespace

// In variables of its own: the compiler must assume that a segment may be a member.
void WrittenExtent::add(std::span<const Segment> segments) {
  uint64_t leastOne = least, mostOne = most, firstOne = first, lastOne = last, before = end,
           all = 0;
  bool overtakes = false;
  for (const Segment& segment : segments) {
    leastOne = std::min(leastOne, segment.bytes);
    mostOne = std::max(mostOne, segment.bytes);
    firstOne = std::min(firstOne, segment.toOffset);
    lastOne = std::max(lastOne, segment.toOffset);
    overtakes |= segment.toOffset < before;
    before = segment.toOffset + segment.bytes;
    all += segment.bytes;
  }
  least = leastOne;
  most = mostOne;
  first = firstOne;
  last = lastOne;
  end = before;
  bytes += all;
  isInOrder = isInOrder && !overtakes;
}

// Lists mostly come in order, and then nobody calls this; pages in any order are looked at on a
// grid, and blocks that do not lie far apart in a table; else the blocks are put in order, and also
// where two overlap, to say which.
Status checkDestinations(const std::vector<Segment>& blocks, const WrittenExtent& extent) {
  if (overlapOnGrid(blocks, extent) == false) return Status::ok();
  if (GranuleTable::suits(extent, blocks.size()) && !GranuleTable::doOverlap(blocks, extent))
    return Status::ok();
  const WrittenOrder order(blocks, extent);
  for (size_t i = 1; i < blocks.size(); ++i)
    if (!writesAfter(blocks[order[i]], blocks[order[i - 1]])) [[unlikely]]
      return overlapOf(blocks, order[i - 1], order[i]);
  return Status::ok();
}

Status checkSources(const BlockList& blocks) {
  if (blocks.layout.kind == CopyLayout::Kind::kIndexed) return Status::ok();
  for (const RemoteRegion& remote : blocks.remotes)
    // Acquire: the region was written before kReady. One that is not ready is posted late, for a
    // device, and its place is not known yet.
    if (remote.slot()->state.load(std::memory_order_acquire) != ImportSlot::State::kReady)
      return Status::ok();
  // Mostly no region of this side has bytes of one of the other side: then no block has either, and
  // nobody looks at the blocks.
  if (!doMeet(rangesOfRegions(blocks)) || !doMeet(rangesOfBlocks(blocks))) return Status::ok();
  return Status(Code::kInvalidArgument,
                "source and destination of this transfer are the same memory in part");
}

}  // namespace peerlane
