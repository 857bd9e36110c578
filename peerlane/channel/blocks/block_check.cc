// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/blocks/block_check.h"

#include <optional>
#include <string>
#include <utility>

#include "peerlane/channel/blocks/block_grid.h"
#include "peerlane/channel/blocks/block_overlap.h"
#include "peerlane/channel/blocks/region_numbers.h"
#include "peerlane/core/spare_vector.h"

namespace peerlane {
namespace {

Status invalid(std::string message) {
  return Status(Code::kInvalidArgument, std::move(message));
}

bool isInside(uint64_t regionBytes, uint64_t offset, uint64_t bytes) {
  return bytes - 1 < regionBytes && offset <= regionBytes - bytes;  // no bytes are in no region
}

// Of a block that is not inside.
Status badRange(const char* side, uint64_t regionBytes, uint64_t offset, uint64_t bytes,
                size_t index) {
  if (bytes == 0)
    return invalid("block " + std::to_string(index) + " has 0 bytes; need at least 1");
  return invalid("block " + std::to_string(index) + ": " + side + " range [" +
                 std::to_string(offset) + ", +" + std::to_string(bytes) +
                 ") lies outside the region's " + std::to_string(regionBytes) + " bytes");
}

// Blocks of one size at fixed distances in a region.
struct Row {
  uint64_t offset;
  uint64_t stride;
  uint64_t count;
};

// offset + (count - 1) * stride + bytes, or nothing when that is no 64-bit number.
std::optional<uint64_t> extentOf(const Row& row, uint64_t bytes) {
  uint64_t span = 0;
  uint64_t end = 0;
  if (__builtin_mul_overflow(row.stride, row.count - 1, &span) ||
      __builtin_add_overflow(span, bytes, &end))
    return {};
  return end;
}

Status checkRow(const char* side, uint64_t regionBytes, const Row& row, uint64_t bytes) {
  const auto extent = extentOf(row, bytes);
  if (extent && *extent <= regionBytes && row.offset <= regionBytes - *extent) return Status::ok();
  return invalid(std::string(side) + " blocks: " + std::to_string(row.count) + " x " +
                 std::to_string(bytes) + " bytes, stride " + std::to_string(row.stride) +
                 ", from offset " + std::to_string(row.offset) + " lie outside the region's " +
                 std::to_string(regionBytes) + " bytes");
}

// Between memories of GPUs, whose kernels take block numbers. False: nothing is taken; what is
// wrong with the list is still to be found.
bool takeGrid(const PeerCore& peer, std::span<const Block> blocks, BlockList& list) {
  const Block& first = blocks[0];
  if (blocks.size() < kLeastGridBlocks || first.local == nullptr || !*first.local ||
      first.local->record()->memory.device.kind == DeviceKind::kHost || first.remote == nullptr)
    return false;
  RegionNumbers numbers(peer, list);
  const auto local = numbers.local(first.local);
  const auto remote = local.isOk() ? numbers.remote(first.remote) : local;
  if (!remote.isOk() || !findGrid(list.direction, blocks, list.locals[0]->bytes,
                                  first.remote->bytes(), list.layout)) {
    list.locals.clear();
    list.remotes.clear();
    return false;
  }
  list.layout.first.to = list.isPut() ? *remote : *local;
  list.layout.first.from = list.isPut() ? *local : *remote;
  list.bytes = blocks.size() * first.bytes;
  return true;
}

// A strided or indexed layout of blocks that lie in both rows.
Status takeRows(const PeerCore& peer, const Region* localRegion, const Row& local,
                const RemoteRegion* remoteRegion, const Row& remote, uint64_t blockBytes,
                BlockList& list) {
  RegionNumbers numbers(peer, list);
  PEERLANE_ASSIGN(const TargetId localId, numbers.local(localRegion));
  PEERLANE_ASSIGN(const TargetId remoteId, numbers.remote(remoteRegion));
  PEERLANE_RETURN_IF_ERROR(checkRow("local", list.locals[0]->bytes, local, blockBytes));
  PEERLANE_RETURN_IF_ERROR(checkRow("remote", remoteRegion->bytes(), remote, blockBytes));
  const bool isPut = list.isPut();
  CopyLayout& layout = list.layout;
  layout.first = isPut ? Segment{remoteId, localId, remote.offset, local.offset, blockBytes}
                       : Segment{localId, remoteId, local.offset, remote.offset, blockBytes};
  layout.toStride = isPut ? remote.stride : local.stride;
  layout.fromStride = isPut ? local.stride : remote.stride;
  return Status::ok();
}

// The two regions of a block, and the numbers that they got.
struct NamedRegions {
  const Region* local = nullptr;
  const RemoteRegion* remote = nullptr;
  uint64_t localBytes = 0, remoteBytes = 0;
  TargetId to = 0, from = 0;

  bool areOf(const Block& block) const { return block.local == local && block.remote == remote; }
};

// Writes the segments of blocks that lie in these regions, and stops before the first one that does
// not, or that names others. How many. A loop with few variables: they stay in registers.
template <bool kIsPut>
size_t takeRun(std::span<const Block> blocks, const NamedRegions regions, Segment* segments) {
  size_t taken = 0;
  for (const Block& block : blocks) {
    if (!regions.areOf(block) || !isInside(regions.localBytes, block.localOffset, block.bytes) ||
        !isInside(regions.remoteBytes, block.remoteOffset, block.bytes)) [[unlikely]]
      break;
    segments[taken++] = {regions.to, regions.from, kIsPut ? block.remoteOffset : block.localOffset,
                         kIsPut ? block.localOffset : block.remoteOffset, block.bytes};
  }
  return taken;
}

// Finds the regions of `block`, which is the block number `index`. kInvalidArgument where they are
// the same as before: then it does not lie in them.
Status enterRegions(RegionNumbers& numbers, const BlockList& list, const Block& block, size_t index,
                    NamedRegions& regions) {
  if (regions.local != nullptr && regions.areOf(block))
    return !isInside(regions.localBytes, block.localOffset, block.bytes)
               ? badRange("local", regions.localBytes, block.localOffset, block.bytes, index)
               : badRange("remote", regions.remoteBytes, block.remoteOffset, block.bytes, index);
  TargetId& local = list.isPut() ? regions.from : regions.to;
  TargetId& remote = list.isPut() ? regions.to : regions.from;
  if (regions.local == nullptr || block.local != regions.local) {
    PEERLANE_ASSIGN(local, numbers.local(block.local));
    regions.local = block.local;
    regions.localBytes = list.locals[local - list.firstLocal]->bytes;
  }
  if (regions.remote == nullptr || block.remote != regions.remote) {
    PEERLANE_ASSIGN(remote, numbers.remote(block.remote));
    regions.remote = block.remote;
    regions.remoteBytes = block.remote->bytes();
  }
  return Status::ok();
}

// Writes the segments and gathers their extent. It stops where a second local region would get the
// number of the first remote one.
Status walkList(const PeerCore& peer, std::span<const Block> blocks, BlockList& checked,
                WrittenExtent& extent) {
  // Two walks over so many blocks cost less than one: each leaves the next what the cache holds.
  constexpr size_t kRun = 128;
  RegionNumbers numbers(peer, checked);
  Segment* const segments = checked.layout.segments.data();
  const auto take = checked.isPut() ? takeRun<true> : takeRun<false>;
  NamedRegions regions;
  for (size_t i = 0; i < blocks.size();) {
    const std::span<const Block> run = blocks.subspan(i, std::min(kRun, blocks.size() - i));
    const size_t taken = take(run, regions, segments + i);
    extent.add({segments + i, taken});
    i += taken;
    if (taken == run.size()) continue;
    PEERLANE_RETURN_IF_ERROR(enterRegions(numbers, checked, blocks[i], i, regions));
    if (!checked.hasRoomForNumbers()) return Status::ok();
    extent.addTarget(regions.to);
  }
  return Status::ok();
}

// A list of any kind, as segments. Mostly it has one local region, and then the program's numbers
// are known: they are `firstTarget` and the next ones.
Status takeList(const PeerCore& peer, std::span<const Block> blocks, TargetId firstTarget,
                BlockList& checked) {
  std::vector<Segment>& segments = checked.layout.segments;
  segments = SpareVector<Segment>::takeFilled(blocks.size());
  segments.resize(blocks.size());
  checked.firstLocal = firstTarget;
  checked.firstRemote = static_cast<TargetId>(firstTarget + 1);
  WrittenExtent extent;
  PEERLANE_RETURN_IF_ERROR(walkList(peer, blocks, checked, extent));
  if (!checked.hasRoomForNumbers()) {
    checked.locals.clear();
    checked.remotes.clear();
    checked.firstLocal = 0;
    checked.firstRemote = BlockList::kRemoteBit;
    extent = {};
    PEERLANE_RETURN_IF_ERROR(walkList(peer, blocks, checked, extent));
  }
  checked.bytes = extent.bytes;
  return extent.isInOrder ? Status::ok() : checkDestinations(segments, extent);
}

}  // namespace

Status checkBlocks(const PeerCore& peer, Direction direction, std::span<const Block> blocks,
                   BlockList& checked, TargetId firstTarget) {
  checked.direction = direction;
  if (blocks.empty()) return invalid("a list without blocks; need at least one");
  if (takeGrid(peer, blocks, checked)) return Status::ok();
  Status taken = takeList(peer, blocks, firstTarget, checked);
  if (!taken.isOk()) SpareVector<Segment>::giveBack(std::move(checked.layout.segments));
  return taken;
}

Status checkBlocks(const PeerCore& peer, Direction direction, const StridedBlocks& blocks,
                   BlockList& checked) {
  checked.direction = direction;
  if (blocks.count == 0 || blocks.blockBytes == 0)
    return invalid("strided blocks: " + std::to_string(blocks.count) + " x " +
                   std::to_string(blocks.blockBytes) +
                   " bytes; need at least one of at least 1 byte");
  const Row local{blocks.localOffset, blocks.localStride, blocks.count};
  const Row remote{blocks.remoteOffset, blocks.remoteStride, blocks.count};
  PEERLANE_RETURN_IF_ERROR(
      takeRows(peer, blocks.local, local, blocks.remote, remote, blocks.blockBytes, checked));
  CopyLayout& layout = checked.layout;
  if (blocks.count > 1 && layout.toStride < blocks.blockBytes)
    return invalid("strided blocks overlap at their destination: stride " +
                   std::to_string(layout.toStride) + " is below the block size " +
                   std::to_string(blocks.blockBytes));
  layout.kind = CopyLayout::Kind::kStrided;
  layout.count = blocks.count;
  checked.bytes = blocks.count * blocks.blockBytes;
  return Status::ok();
}

Status checkBlocks(const PeerCore& peer, Direction direction, const IndexedBlocks& blocks,
                   BlockList& checked) {
  checked.direction = direction;
  if (blocks.blockBytes == 0 || blocks.localCount == 0 || blocks.remoteCount == 0 ||
      blocks.maxBlocksPerPost == 0)
    return invalid(
        "indexed blocks need blockBytes, localCount, remoteCount and maxBlocksPerPost above 0");
  if (blocks.localCount > UINT32_MAX || blocks.remoteCount > UINT32_MAX ||
      blocks.maxBlocksPerPost > UINT32_MAX)
    return invalid("indexed blocks are numbered by 32 bits; a count is above that");
  const auto strideOf = [&](uint64_t stride) { return stride == 0 ? blocks.blockBytes : stride; };
  const Row local{blocks.localOffset, strideOf(blocks.localStride), blocks.localCount};
  const Row remote{blocks.remoteOffset, strideOf(blocks.remoteStride), blocks.remoteCount};
  if (local.stride < blocks.blockBytes || remote.stride < blocks.blockBytes)
    return invalid("indexed blocks overlap: a stride is below the block size " +
                   std::to_string(blocks.blockBytes));
  PEERLANE_RETURN_IF_ERROR(
      takeRows(peer, blocks.local, local, blocks.remote, remote, blocks.blockBytes, checked));
  CopyLayout& layout = checked.layout;
  layout.kind = CopyLayout::Kind::kIndexed;
  layout.toLimit = checked.isPut() ? blocks.remoteCount : blocks.localCount;
  layout.fromLimit = checked.isPut() ? blocks.localCount : blocks.remoteCount;
  layout.count = blocks.maxBlocksPerPost;
  checked.bytes = blocks.blockBytes;
  return Status::ok();
}

}  // namespace peerlane
