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

// A list of any kind, as segments.
Status takeList(const PeerCore& peer, Direction direction, std::span<const Block> blocks,
                BlockList& checked) {
  RegionNumbers numbers(peer, checked);
  std::vector<Segment>& segments = checked.layout.segments;
  segments = SpareVector<Segment>::takeFilled(blocks.size());
  segments.resize(blocks.size());
  Segment* next = segments.data();
  const Region* lastLocal = nullptr;
  const RemoteRegion* lastRemote = nullptr;
  TargetId local = 0, remote = 0;
  uint64_t localBytes = 0, remoteBytes = 0;
  // One walk: lists may be long, and the caller of a post waits for it. The walk gathers into
  // variables of its own, because stores of segments might change a member's.
  const bool isPut = direction == Direction::kPut;
  WrittenExtent extent;
  uint64_t bytes = 0;
  bool inOrder = true;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const Block& block = blocks[i];
    if (block.local != lastLocal || i == 0) {
      PEERLANE_ASSIGN(local, numbers.local(block.local));
      lastLocal = block.local;
      localBytes = checked.locals[local]->bytes;
      if (!isPut) extent.addTarget(local);
    }
    if (block.remote != lastRemote || i == 0) {
      PEERLANE_ASSIGN(remote, numbers.remote(block.remote));
      lastRemote = block.remote;
      remoteBytes = block.remote->bytes();
      if (isPut) extent.addTarget(remote);
    }
    if (!isInside(localBytes, block.localOffset, block.bytes)) [[unlikely]]
      return badRange("local", localBytes, block.localOffset, block.bytes, i);
    if (!isInside(remoteBytes, block.remoteOffset, block.bytes)) [[unlikely]]
      return badRange("remote", remoteBytes, block.remoteOffset, block.bytes, i);
    const Segment segment =
        isPut ? Segment{remote, local, block.remoteOffset, block.localOffset, block.bytes}
              : Segment{local, remote, block.localOffset, block.remoteOffset, block.bytes};
    inOrder = inOrder && (i == 0 || writesAfter(segment, next[-1]));
    extent.add(segment);
    *next++ = segment;
    bytes += block.bytes;
  }
  checked.bytes = bytes;
  if (inOrder) return Status::ok();
  const WrittenExtent seen = extent;  // a copy, for the address of the walk's own stays in it
  return checkDestinations(segments, seen);
}

}  // namespace

Status checkBlocks(const PeerCore& peer, Direction direction, std::span<const Block> blocks,
                   BlockList& checked) {
  checked.direction = direction;
  if (blocks.empty()) return invalid("a list without blocks; need at least one");
  if (takeGrid(peer, blocks, checked)) return Status::ok();
  Status taken = takeList(peer, direction, blocks, checked);
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
