// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/blocks/block_program.h"

#include <algorithm>
#include <string>

#include "peerlane/channel/protocol/notify_protocol.h"
#include "peerlane/channel/protocol/signal_protocol.h"
#include "peerlane/os/cuda.h"
#include "peerlane/program/device/device_executor.h"

namespace peerlane {
namespace {

constexpr size_t kMaxRegions = 0x3f00;

// Two handles may name one region: their blocks are in the same memory.
bool sameRegion(const RemoteRegion& a, const RemoteRegion& b) {
  return a.slot() == b.slot() ||
         (a.peer() == b.peer() && a.reference().allocation == b.reference().allocation &&
          a.reference().generation == b.reference().generation);
}

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

// Of two blocks in their order, the second writes behind all that the first does.
bool isBehind(const Segment& second, const Segment& first) {
  return second.to != first.to ? second.to > first.to
                               : second.toOffset >= first.toOffset + first.bytes;
}

// Leaves in the layout what is mapped, unless nothing is.
template <typename IsMapped>
void splitForAgent(PutPayload& payload, const IsMapped& isMapped) {
  std::vector<Segment>& segments = payload.layout.segments;
  if (std::none_of(segments.begin(), segments.end(), isMapped)) return;
  const auto byAgent = std::stable_partition(segments.begin(), segments.end(), isMapped);
  if (byAgent == segments.end()) return;
  payload.byAgent.assign(byAgent, segments.end());
  segments.erase(byAgent, segments.end());
}

// offset + (count - 1) * stride + bytes, or nothing when that is no 64-bit number.
std::optional<uint64_t> extentOf(uint64_t stride, uint64_t count, uint64_t bytes) {
  uint64_t span = 0;
  uint64_t end = 0;
  if (__builtin_mul_overflow(stride, count - 1, &span) || __builtin_add_overflow(span, bytes, &end))
    return {};
  return end;
}

Status checkStrided(const char* side, uint64_t regionBytes, uint64_t offset, uint64_t stride,
                    uint64_t count, uint64_t bytes) {
  const auto extent = extentOf(stride, count, bytes);
  if (extent && *extent <= regionBytes && offset <= regionBytes - *extent) return Status::ok();
  return invalid(std::string(side) + " blocks: " + std::to_string(count) + " x " +
                 std::to_string(bytes) + " bytes, stride " + std::to_string(stride) +
                 ", from offset " + std::to_string(offset) + " lie outside the region's " +
                 std::to_string(regionBytes) + " bytes");
}

}  // namespace

Result<OwnedNotify> ownNotify(const Notify& notify) {
  OwnedNotify owned;
  if (notify.message) {
    if (notify.message->size() > kNotifyMaxMessageBytes)
      return invalid("notification message of " + std::to_string(notify.message->size()) +
                     " bytes; at most " + std::to_string(kNotifyMaxMessageBytes));
    owned.hasMessage = true;
    owned.message.assign(notify.message->begin(), notify.message->end());
    owned.header[0] = static_cast<uint32_t>(owned.message.size());
    owned.header[1] = notify.tag;
  }
  if (notify.signal) {
    if (*notify.signal >= slab::kSignals)
      return invalid("signal " + std::to_string(*notify.signal) + "; there are 0 to " +
                     std::to_string(slab::kSignals - 1));
    if (notify.signalAdd >= kPoison)
      return invalid("signal addition " + std::to_string(notify.signalAdd) +
                     "; counters stay below 2^62");
    owned.signal = notify.signal;
    owned.signalAdd = notify.signalAdd;
  }
  return owned;
}

Status BlockProgram::begin(Direction direction) {
  direction_ = direction;
  bytes_ = 0;
  locals_.clear();
  remotes_.clear();
  layout_.segments.clear();
  layout_.kind = CopyLayout::Kind::kScattered;
  lateTouched_.clear();
  asked_ = false;
  return Status::ok();
}

Result<TargetId> BlockProgram::localTarget(const Region* region) {
  if (region == nullptr || !*region) return invalid("a block names no local region");
  // Blocks of a list mostly share the region of the one before: look from the back.
  for (size_t i = locals_.size(); i-- > 0;)
    if (locals_[i] == region->record()) return static_cast<TargetId>(i);
  if (locals_.size() >= kMaxRegions)
    return invalid("one post names more than " + std::to_string(kMaxRegions) + " local regions");
  locals_.push_back(region->record());
  return static_cast<TargetId>(locals_.size() - 1);
}

Result<TargetId> BlockProgram::remoteTarget(const PeerCore& peer, const RemoteRegion* region) {
  if (region == nullptr || !*region) return invalid("a block names no remote region");
  for (size_t i = remotes_.size(); i-- > 0;)
    if (sameRegion(remotes_[i], *region)) return static_cast<TargetId>(kRemoteBit + i);
  if (region->peer().get() != &peer)
    return invalid(
        "a block names a region of another peer (or of an earlier connection to this one)");
  const Access wanted = direction_ == Direction::kPut ? Access::kRemoteWrite : Access::kRemoteRead;
  if (!allows(region->access(), wanted))
    return Status(Code::kPermissionDenied, std::string("the remote region grants ") +
                                               accessName(region->access()) + ", this needs " +
                                               accessName(wanted));
  if (remotes_.size() >= kMaxRegions)
    return invalid("one post names more than " + std::to_string(kMaxRegions) + " remote regions");
  remotes_.push_back(*region);
  return static_cast<TargetId>(kRemoteBit + remotes_.size() - 1);
}

Status BlockProgram::take(const PeerCore& peer, Direction direction,
                          std::span<const Block> blocks) {
  PEERLANE_RETURN_IF_ERROR(begin(direction));
  if (blocks.empty()) return invalid("a list without blocks; need at least one");
  std::vector<Segment>& segments = layout_.segments;
  segments.reserve(blocks.size());
  const Region* lastLocal = nullptr;
  const RemoteRegion* lastRemote = nullptr;
  TargetId local = 0, remote = 0;
  uint64_t localBytes = 0, remoteBytes = 0;
  // One walk: lists may be long, and whoever posts waits for it. What it gathers are its own
  // variables, for stores of segments might change a member's.
  const bool isPut = direction == Direction::kPut;
  std::optional<Grid> grid;
  uint64_t bytes = 0;
  bool inOrder = true;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const Block& block = blocks[i];
    if (block.local != lastLocal || i == 0) {
      PEERLANE_ASSIGN(local, localTarget(block.local));
      lastLocal = block.local;
      localBytes = locals_[local]->bytes;
    }
    if (block.remote != lastRemote || i == 0) {
      PEERLANE_ASSIGN(remote, remoteTarget(peer, block.remote));
      lastRemote = block.remote;
      remoteBytes = block.remote->bytes();
    }
    if (!isInside(localBytes, block.localOffset, block.bytes)) [[unlikely]]
      return badRange("local", localBytes, block.localOffset, block.bytes, i);
    if (!isInside(remoteBytes, block.remoteOffset, block.bytes)) [[unlikely]]
      return badRange("remote", remoteBytes, block.remoteOffset, block.bytes, i);
    const Segment segment =
        isPut ? Segment{remote, local, block.remoteOffset, block.localOffset, block.bytes}
              : Segment{local, remote, block.localOffset, block.remoteOffset, block.bytes};
    if (i == 0)
      grid.emplace(segment);
    else
      inOrder = inOrder && isBehind(segment, segments.back());
    grid->add(segment);
    segments.push_back(segment);
    bytes += block.bytes;
  }
  bytes_ = bytes;
  return inOrder ? Status::ok() : checkOverlap(*grid);
}

Status BlockProgram::take(const PeerCore& peer, Direction direction, const StridedBlocks& blocks) {
  PEERLANE_RETURN_IF_ERROR(begin(direction));
  if (blocks.count == 0 || blocks.blockBytes == 0)
    return invalid("strided blocks: " + std::to_string(blocks.count) + " x " +
                   std::to_string(blocks.blockBytes) +
                   " bytes; need at least one of at least 1 byte");
  PEERLANE_ASSIGN(const TargetId local, localTarget(blocks.local));
  PEERLANE_ASSIGN(const TargetId remote, remoteTarget(peer, blocks.remote));
  PEERLANE_RETURN_IF_ERROR(checkStrided("local", locals_[0]->bytes, blocks.localOffset,
                                        blocks.localStride, blocks.count, blocks.blockBytes));
  PEERLANE_RETURN_IF_ERROR(checkStrided("remote", blocks.remote->bytes(), blocks.remoteOffset,
                                        blocks.remoteStride, blocks.count, blocks.blockBytes));
  const bool isPut = direction == Direction::kPut;
  const uint64_t toStride = isPut ? blocks.remoteStride : blocks.localStride;
  if (blocks.count > 1 && toStride < blocks.blockBytes)
    return invalid("strided blocks overlap at their destination: stride " +
                   std::to_string(toStride) + " is below the block size " +
                   std::to_string(blocks.blockBytes));
  layout_.kind = CopyLayout::Kind::kStrided;
  layout_.first =
      isPut ? Segment{remote, local, blocks.remoteOffset, blocks.localOffset, blocks.blockBytes}
            : Segment{local, remote, blocks.localOffset, blocks.remoteOffset, blocks.blockBytes};
  layout_.toStride = toStride;
  layout_.fromStride = isPut ? blocks.localStride : blocks.remoteStride;
  layout_.count = blocks.count;
  bytes_ = blocks.count * blocks.blockBytes;
  return Status::ok();
}

Status BlockProgram::take(const PeerCore& peer, Direction direction, const IndexedBlocks& blocks) {
  PEERLANE_RETURN_IF_ERROR(begin(direction));
  if (blocks.blockBytes == 0 || blocks.localCount == 0 || blocks.remoteCount == 0 ||
      blocks.maxBlocksPerPost == 0)
    return invalid(
        "indexed blocks need blockBytes, localCount, remoteCount and maxBlocksPerPost above 0");
  if (blocks.localCount > UINT32_MAX || blocks.remoteCount > UINT32_MAX ||
      blocks.maxBlocksPerPost > UINT32_MAX)
    return invalid("indexed blocks are numbered by 32 bits; a count is above that");
  const uint64_t localStride = blocks.localStride == 0 ? blocks.blockBytes : blocks.localStride;
  const uint64_t remoteStride = blocks.remoteStride == 0 ? blocks.blockBytes : blocks.remoteStride;
  if (localStride < blocks.blockBytes || remoteStride < blocks.blockBytes)
    return invalid("indexed blocks overlap: a stride is below the block size " +
                   std::to_string(blocks.blockBytes));
  PEERLANE_ASSIGN(const TargetId local, localTarget(blocks.local));
  PEERLANE_ASSIGN(const TargetId remote, remoteTarget(peer, blocks.remote));
  PEERLANE_RETURN_IF_ERROR(checkStrided("local", locals_[0]->bytes, blocks.localOffset, localStride,
                                        blocks.localCount, blocks.blockBytes));
  PEERLANE_RETURN_IF_ERROR(checkStrided("remote", blocks.remote->bytes(), blocks.remoteOffset,
                                        remoteStride, blocks.remoteCount, blocks.blockBytes));
  const bool isPut = direction == Direction::kPut;
  layout_.kind = CopyLayout::Kind::kIndexed;
  layout_.first =
      isPut ? Segment{remote, local, blocks.remoteOffset, blocks.localOffset, blocks.blockBytes}
            : Segment{local, remote, blocks.localOffset, blocks.remoteOffset, blocks.blockBytes};
  layout_.toStride = isPut ? remoteStride : localStride;
  layout_.fromStride = isPut ? localStride : remoteStride;
  layout_.toLimit = isPut ? blocks.remoteCount : blocks.localCount;
  layout_.fromLimit = isPut ? blocks.localCount : blocks.remoteCount;
  layout_.count = blocks.maxBlocksPerPost;
  bytes_ = blocks.blockBytes;
  return Status::ok();
}

// Blocks of one size on a grid (pages), in any order: a bit per place between the first and the
// last tells whether two meet. Nothing when the list is not of that kind.
std::optional<bool> BlockProgram::overlapOnGrid(const Grid& grid) const {
  // To clear so many bits takes as long as sorting one segment does.
  constexpr uint64_t kBitsPerSegment = 1024;
  const std::vector<Segment>& segments = layout_.segments;
  if (!grid.isUniform) return {};
  const uint64_t places = (grid.last - grid.first) / grid.block + 1;
  if (places > segments.size() * kBitsPerSegment) return {};
  // Multiplied instead of divided, which is exact for whole blocks; others are seen below. A
  // reciprocal of 2^64 does not fit, but a block of one byte is its own number.
  const uint64_t reciprocal = grid.block == 1 ? 0 : UINT64_MAX / grid.block + 1;
  std::vector<bool> taken(places, false);
  for (const Segment& segment : segments) {
    const uint64_t distance = segment.toOffset - grid.first;
    const auto product = static_cast<unsigned __int128>(distance) * reciprocal;
    const uint64_t place = grid.block == 1 ? distance : static_cast<uint64_t>(product >> 64);
    if (place * grid.block != distance) return {};
    if (taken[place]) return true;
    taken[place] = true;
  }
  return false;
}

// Two blocks that write the same bytes leave it to chance who wins: refused. Lists mostly come in
// order, and are not looked at here, or on a grid; else the ranges are sorted.
Status BlockProgram::checkOverlap(const Grid& grid) const {
  if (overlapOnGrid(grid) == false) return Status::ok();
  std::vector<Segment> sorted = layout_.segments;
  std::sort(sorted.begin(), sorted.end(), [](const Segment& a, const Segment& b) {
    return a.to != b.to ? a.to < b.to : a.toOffset < b.toOffset;
  });
  for (size_t i = 1; i < sorted.size(); ++i)
    if (!isBehind(sorted[i], sorted[i - 1])) return whichOverlap(sorted[i - 1], sorted[i]);
  return Status::ok();
}

// A caller knows his blocks by their place in the list.
Status BlockProgram::whichOverlap(const Segment& first, const Segment& second) const {
  std::vector<size_t> places;
  for (size_t i = 0; i < layout_.segments.size() && places.size() < 2; ++i) {
    const Segment& each = layout_.segments[i];
    const auto is = [&](const Segment& other) {
      return each.to == other.to && each.toOffset == other.toOffset && each.bytes == other.bytes;
    };
    if (is(first) || is(second)) places.push_back(i);
  }
  return invalid("blocks " + std::to_string(places.front()) + " and " +
                 std::to_string(places.back()) + " of the list (from 0) overlap at their " +
                 "destination: offset " + std::to_string(first.toOffset) + " + " +
                 std::to_string(first.bytes) + " bytes, and offset " +
                 std::to_string(second.toOffset));
}

template <typename Visit>
void BlockProgram::eachTouched(const Visit& visit) const {
  if (remotes_.empty()) return;
  const bool isPut = direction_ == Direction::kPut;
  if (layout_.kind == CopyLayout::Kind::kScattered) {
    for (const Touched& touched : lateTouched_) visit(touched);
    for (const Segment& segment : layout_.segments)
      visit(Touched{size_t{isPut ? segment.to : segment.from} - kRemoteBit,
                    isPut ? segment.toOffset : segment.fromOffset, segment.bytes});
    return;
  }
  const bool isIndexed = layout_.kind == CopyLayout::Kind::kIndexed;
  const uint64_t stride = isPut ? layout_.toStride : layout_.fromStride;
  const uint64_t places =
      !isIndexed ? layout_.count : (isPut ? layout_.toLimit : layout_.fromLimit);
  visit(Touched{0, isPut ? layout_.first.toOffset : layout_.first.fromOffset,
                (places - 1) * stride + layout_.first.bytes});
}

// Requires: the region is imported. Chunks that are mapped stay so.
bool BlockProgram::isReached(size_t remote) const {
  const auto& chunks = remotes_[remote].slot()->region->memory.chunks;
  if (!chunks || chunks->complete()) return true;
  bool all = true;
  eachTouched([&](const Touched& touched) {
    all = all && (touched.remote != remote || chunks->covers(touched.offset, touched.bytes));
  });
  return all;
}

bool BlockProgram::imported(PeerCore& peer) {
  bool all = true;
  for (const RemoteRegion& remote : remotes_) {
    const auto state = remote.slot()->state.load(std::memory_order_acquire);
    if (state == ImportSlot::State::kNone)
      peer.imports().request(remote.reference(), remote.slot());
    all = all && state == ImportSlot::State::kReady;
  }
  if (!all) return false;
  for (size_t i = 0; i < remotes_.size(); ++i) {
    if (isReached(i)) continue;
    all = false;
    if (asked_) continue;
    const std::shared_ptr<ImportedRegion>& region = remotes_[i].slot()->region;
    std::vector<ChunkMap::Range> wanted;
    eachTouched([&](const Touched& touched) {
      if (touched.remote != i) return;
      const auto missing = region->memory.chunks->ask(touched.offset, touched.bytes);
      wanted.insert(wanted.end(), missing.begin(), missing.end());
    });
    peer.imports().requestChunks(region, std::move(wanted));
  }
  asked_ = true;
  return all;
}

Status BlockProgram::importFailure() const {
  for (const RemoteRegion& remote : remotes_)
    if (remote.slot()->state.load(std::memory_order_acquire) == ImportSlot::State::kFailed)
      return remote.slot()->failure;
  Status failed;
  for (size_t i = 0; i < remotes_.size(); ++i) {
    const ImportSlot& slot = *remotes_[i].slot();
    if (slot.state.load(std::memory_order_acquire) != ImportSlot::State::kReady) continue;
    const auto& chunks = slot.region->memory.chunks;
    if (!chunks || !chunks->failed()) continue;
    eachTouched([&](const Touched& touched) {
      if (touched.remote == i && failed.isOk())
        failed = chunks->failure(touched.offset, touched.bytes);
    });
  }
  return failed;
}

Status BlockProgram::enter() {
  PEERLANE_RETURN_IF_ERROR(enterLocals());
  for (size_t i = 0; i < remotes_.size(); ++i) {
    const ImportedRegion& closed = *remotes_[i].slot()->region;
    if (remotes_[i].slot()->region->gate.enter()) continue;
    const bool freed = closed.freed.load(std::memory_order_relaxed);
    while (i-- > 0) remotes_[i].slot()->region->gate.leave();
    leaveLocals();
    return Status(Code::kClosed,
                  freed ? "the peer freed the memory of a remote region without unregistering it"
                        : "the peer has unregistered a remote region of this transfer, or is "
                          "about to");
  }
  return Status::ok();
}

void BlockProgram::leave() {
  leaveLocals();
  for (const RemoteRegion& remote : remotes_) remote.slot()->region->gate.leave();
}

Result<DeviceExecutor*> BlockProgram::executor(const PeerCore& peer, DeviceStream stream) const {
  std::optional<Device> found;
  for (const auto& local : locals_) {
    const Device& device = local->memory.device;
    if (device.kind == DeviceKind::kHost) continue;
    if (found && *found != device)
      return Status(Code::kNotSupported, "local memory of " + found->toString() + " and of " +
                                             device.toString() + " in one post; make two");
    found = device;
  }
  if (found) return peer.executor(*found);
  const bool fromDevice = std::any_of(remotes_.begin(), remotes_.end(), [](const auto& remote) {
    return remote.reference().device.kind != DeviceKind::kHost;
  });
  if (!fromDevice) return nullptr;
  if (stream) return peer.executorOf(stream);
  if (peer.devices().empty())
    return Status(Code::kNotSupported,
                  "the peer's memory is a GPU's, and this context was made without one: name a GPU "
                  "in ContextOptions::devices, or let the peer post the transfer");
  return peer.devices().front().get();
}

Status BlockProgram::pin(DeviceExecutor& executor) const {
  for (const auto& local : locals_) {
    if (local->memory.device.kind != DeviceKind::kHost) continue;
    PEERLANE_RETURN_IF_ERROR(
        local->pin.ensure([&] { return executor.pin(local->base, local->bytes); }));
  }
  for (const RemoteRegion& remote : remotes_) {
    const std::shared_ptr<ImportedRegion>& region = remote.slot()->region;
    const RemoteMemory& memory = region->memory;
    if (isCuda(memory.grant.kind)) continue;
    if (memory.mapped == nullptr)
      return Status(Code::kNotSupported,
                    "a GPU cannot reach the peer's region " +
                        std::to_string(memory.grant.allocation) +
                        ", which is not mapped here: it is private memory, or on another host; "
                        "Context::allocate and memfd give memory that peers can map");
    PEERLANE_RETURN_IF_ERROR(
        region->pin.ensure([&] { return executor.pin(memory.mapped, memory.grant.bytes); }));
  }
  return Status::ok();
}

Status BlockProgram::checkIdentity() const {
  for (const auto& local : locals_) {
    if (local->memory.device.kind != DeviceKind::kCuda) continue;
    if (cuda::identityOf(local->base) == local->memory.identity) continue;
    return invalid("region " + std::to_string(local->allocation) + " of " +
                   local->memory.device.toString() +
                   " was freed without being unregistered; its memory is gone or another's");
  }
  return Status::ok();
}

std::string BlockProgram::whyStaged(const PeerCore& peer) const {
  const bool byDevice = std::any_of(locals_.begin(), locals_.end(), [](const auto& local) {
    return local->memory.device.kind != DeviceKind::kHost;
  });
  for (const RemoteRegion& remote : remotes_)
    if (std::string why = peer.links().whyStaged(remote.reference(), byDevice); !why.empty())
      return why;
  return {};
}

std::vector<BlockProgram::Piece> BlockProgram::pieces(std::span<const uint32_t> localIndex,
                                                      std::span<const uint32_t> remoteIndex) const {
  const bool isPut = direction_ == Direction::kPut;
  std::vector<Piece> pieces;
  const auto add = [&](const Segment& segment, uint64_t toMore, uint64_t fromMore) {
    const size_t remote = size_t{isPut ? segment.to : segment.from} - kRemoteBit;
    const uint64_t to = segment.toOffset + toMore;
    const uint64_t from = segment.fromOffset + fromMore;
    pieces.push_back({size_t{isPut ? segment.from : segment.to}, isPut ? from : to, remote,
                      isPut ? to : from, segment.bytes});
  };
  switch (layout_.kind) {
    case CopyLayout::Kind::kScattered:
      for (const Segment& segment : layout_.segments) add(segment, 0, 0);
      break;
    case CopyLayout::Kind::kStrided:
      for (uint64_t i = 0; i < layout_.count; ++i)
        add(layout_.first, i * layout_.toStride, i * layout_.fromStride);
      break;
    case CopyLayout::Kind::kIndexed: {
      const auto to = isPut ? remoteIndex : localIndex;
      const auto from = isPut ? localIndex : remoteIndex;
      for (size_t i = 0; i < to.size(); ++i)
        add(layout_.first, to[i] * layout_.toStride, from[i] * layout_.fromStride);
      break;
    }
  }
  return pieces;
}

Status BlockProgram::enterLocals() {
  for (size_t i = 0; i < locals_.size(); ++i) {
    if (locals_[i]->gate.enter()) continue;
    while (i-- > 0) locals_[i]->gate.leave();
    return Status(Code::kClosed, "a local region of this transfer is being unregistered");
  }
  return Status::ok();
}

void BlockProgram::leaveLocals() {
  for (const auto& local : locals_) local->gate.leave();
}

const char* BlockProgram::engine() const {
  if (remotes_.empty()) return "mapped";
  const auto& region = remotes_.front().slot()->region;
  return region ? region->memory.engine : "";
}

// In one process source and destination may be the same memory; memcpy must not see that. Indexed
// blocks are not looked at: their numbers come later, and equal strides keep them apart or equal.
Status BlockProgram::checkOverlapWithSource() const {
  if (layout_.kind == CopyLayout::Kind::kIndexed) return Status::ok();
  for (const RemoteRegion& remote : remotes_)
    if (remote.slot()->state.load(std::memory_order_acquire) != ImportSlot::State::kReady)
      return Status::ok();  // posted late, for a device: nobody knows yet where it lies
  const auto baseOf = [this](TargetId target) -> const std::byte* {
    return target >= kRemoteBit ? remotes_[target - kRemoteBit].slot()->region->memory.mapped
                                : locals_[target]->base;
  };
  struct Range {
    const std::byte* begin;
    const std::byte* end;
    bool isSource;
  };
  std::vector<Range> ranges;
  const auto add = [&](const Segment& segment, uint64_t toMore, uint64_t fromMore) {
    const std::byte* to = baseOf(segment.to) + segment.toOffset + toMore;
    const std::byte* from = baseOf(segment.from) + segment.fromOffset + fromMore;
    ranges.push_back({to, to + segment.bytes, false});
    ranges.push_back({from, from + segment.bytes, true});
  };
  for (const Segment& segment : layout_.segments) add(segment, 0, 0);
  if (layout_.kind == CopyLayout::Kind::kStrided)
    for (uint64_t i = 0; i < layout_.count; ++i)
      add(layout_.first, i * layout_.toStride, i * layout_.fromStride);
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  const std::byte* sourceEnd = nullptr;
  const std::byte* destinationEnd = nullptr;
  for (const Range& range : ranges) {
    const std::byte* otherEnd = range.isSource ? destinationEnd : sourceEnd;
    if (otherEnd != nullptr && range.begin < otherEnd)
      return invalid("source and destination of this transfer are the same memory in part");
    (range.isSource ? sourceEnd : destinationEnd) =
        std::max(range.isSource ? sourceEnd : destinationEnd, range.end);
  }
  return Status::ok();
}

Status BlockProgram::lower(const PeerCore& peer, OwnedNotify& notify, Program& program,
                           Binding& binding, std::byte* slabWindow, Device device) {
  const LinkTraits& traits = peer.link().traits();
  if (traits.transport == "self") PEERLANE_RETURN_IF_ERROR(checkOverlapWithSource());
  const Access wanted = direction_ == Direction::kPut ? Access::kRemoteWrite : Access::kRemoteRead;
  PutPayload payload;
  const TargetId base = notify.hasMessage ? TargetId{kNotifySenderFirstData}
                        : notify.signal   ? TargetId{kSignalSenderFirstData}
                                          : TargetId{0};
  std::vector<BoundTarget> data;
  data.reserve(locals_.size() + remotes_.size());
  payload.targets.reserve(data.capacity());
  for (const auto& local : locals_) {
    payload.targets.push_back({.name = "local", .side = Side::kLocal});
    data.push_back({.address = local->base, .bytes = local->bytes});
  }
  for (size_t i = 0; i < remotes_.size(); ++i) {
    const RemoteRegion& remote = remotes_[i];
    if (remote.slot()->state.load(std::memory_order_acquire) != ImportSlot::State::kReady ||
        !isReached(i)) {
      if (remotes_.size() != 1)
        return Status(Code::kNotPrepared,
                      "several remote regions, not all of them imported (RemoteRegion::prepare)");
      payload.targets.push_back({.name = "remote", .side = Side::kRemote});
      data.push_back({.address = lateBase(), .bytes = remote.bytes()});
      std::vector<Touched> touched;
      if (layout_.kind == CopyLayout::Kind::kScattered)
        eachTouched([&](const Touched& one) { touched.push_back(one); });
      lateTouched_ = std::move(touched);
      continue;
    }
    const RemoteMemory& memory = remote.slot()->region->memory;
    if (!allows(memory.grant.access, wanted))
      return Status(Code::kPermissionDenied, std::string("the owner grants ") +
                                                 accessName(memory.grant.access) + ", this needs " +
                                                 accessName(wanted));
    payload.targets.push_back({.name = "remote", .side = Side::kRemote});
    std::byte* const address = memory.on(device);
    if (address == nullptr && memory.mapped != nullptr)
      return Status(Code::kNotSupported, "the peer's region " +
                                             std::to_string(memory.grant.allocation) +
                                             " could not be opened for " + device.toString());
    data.push_back({.address = address, .bytes = memory.grant.bytes, .remote = &memory});
  }
  if (!locals_.empty()) {
    std::vector<Segment> segments = std::move(layout_.segments);
    layout_.segments.clear();
    payload.layout = layout_;
    payload.layout.segments = std::move(segments);
    const auto numbered = [&](TargetId target) {
      return static_cast<TargetId>(
          base + (target >= kRemoteBit ? locals_.size() + (target - kRemoteBit) : target));
    };
    const auto renumber = [&](Segment& segment) {
      segment.to = numbered(segment.to);
      segment.from = numbered(segment.from);
    };
    if (layout_.kind == CopyLayout::Kind::kScattered) {
      std::for_each(payload.layout.segments.begin(), payload.layout.segments.end(), renumber);
      const auto isMapped = [&](const Segment& segment) {
        return data[segment.to - base].address != nullptr &&
               data[segment.from - base].address != nullptr;
      };
      splitForAgent(payload, isMapped);
    } else {
      renumber(payload.layout.first);
    }
  }

  const std::shared_ptr<ImportedRegion>& peerSlab = peer.peerSlab();
  const auto slabTarget = [&](uint64_t offset, uint64_t bytes) {
    const RemoteMemory& memory = peerSlab->memory;
    if (slabWindow != nullptr)
      return BoundTarget{.address = slabWindow + offset,
                         .bytes = bytes,
                         .remote = &memory,
                         .remoteOffset = offset};
    return BoundTarget{.address = memory.mapped != nullptr ? memory.mapped + offset : nullptr,
                       .bytes = bytes,
                       .remote = &memory,
                       .remoteOffset = offset,
                       .waker = memory.mapped != nullptr ? &traits.waker : nullptr};
  };
  binding.targets.clear();
  binding.targets.reserve(base + data.size());
  const auto signalTarget = [&] {
    return slabTarget(slab::kSignalsOffset + uint64_t{*notify.signal} * slab::kWordStrideBytes,
                      sizeof(uint64_t));
  };
  if (notify.hasMessage) {
    const bool isVoid = notify.header[0] == OwnedNotify::kVoid;
    const NotifyShape shape{slab::kNotifySlots, slab::kInboxStrideBytes,
                            isVoid ? 0 : notify.header[0]};
    program = notifySender(shape, std::move(payload));
    binding.targets.push_back(
        {.address = reinterpret_cast<std::byte*>(notify.header), .bytes = sizeof(notify.header)});
    // An empty message still needs an address to be bound to.
    binding.targets.push_back({.address = notify.message.empty()
                                              ? reinterpret_cast<std::byte*>(notify.header)
                                              : notify.message.data(),
                               .bytes = notify.message.size()});
    binding.targets.push_back(
        slabTarget(slab::kInboxOffset, uint64_t{slab::kNotifySlots} * slab::kInboxStrideBytes));
    binding.targets.push_back({.address = peer.slab() + slab::kCreditsOffset,
                               .bytes = uint64_t{slab::kNotifySlots} * slab::kWordStrideBytes});
    binding.targets.insert(binding.targets.end(), data.begin(), data.end());
    if (notify.signal) {
      program.targets.push_back({.name = "counter", .side = Side::kRemote});
      binding.targets.push_back(signalTarget());
      // Before the slot's number, which stays last: given up in the middle, the run has published
      // nothing, and the slot can be published as void.
      program.ops.insert(program.ops.end() - 1,
                         {.code = OpCode::kAdd64,
                          .order = Order::kRelease,
                          .to = {.target = static_cast<TargetId>(program.targets.size() - 1)},
                          .operand = {.delta = static_cast<int64_t>(notify.signalAdd)}});
    }
    return Status::ok();
  }
  if (notify.signal) {
    program =
        empty() ? signalSender(notify.signalAdd) : putSignal(std::move(payload), notify.signalAdd);
    binding.targets.push_back(signalTarget());
    binding.targets.insert(binding.targets.end(), data.begin(), data.end());
    return Status::ok();
  }
  ProgramBuilder plain(direction_ == Direction::kPut ? "put" : "get");
  if (!empty()) {
    declarePayload(plain, payload);
    movePayload(plain, std::move(payload));
    binding.targets = std::move(data);
  } else {
    // Nothing to move: only the order of what went before matters.
    plain.flush(plain.remote("slab"));
    binding.targets.push_back(slabTarget(0, slab::kBytes));
  }
  program = plain.build();
  return Status::ok();
}

}  // namespace peerlane
