// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/stream/copy/stream_program.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "peerlane/program/stream/copy/copy_ranges.h"

namespace peerlane::stream {
namespace {

Status unsupported(const char* what) {
  return Status(Code::kNotSupported, std::string("a stream cannot do ") + what);
}

// The address of [offset, offset + bytes) of a target.
Result<std::byte*> placeOf(const Binding& binding, TargetId target, uint64_t offset,
                           uint64_t bytes) {
  if (target >= binding.targets.size())
    return Status(Code::kInternal, "target " + std::to_string(target) + " is not bound");
  const BoundTarget& bound = binding.targets[target];
  if (bound.address == nullptr)
    return Status(Code::kNotSupported, "memory that is not mapped cannot be reached by a stream");
  if (offset > bound.bytes || bytes > bound.bytes - offset)
    return Status(Code::kInvalidArgument, "op outside target " + std::to_string(target));
  return bound.address + offset;
}

// They adjoin on both sides, so they are one piece if the memories are the same: the driver refuses
// a copy that goes on from one allocation into the next.
bool touch(const kernel::CopyPiece& piece, const kernel::CopyPiece& next) {
  return piece.to + piece.bytes == next.to && piece.from + piece.bytes == next.from;
}

bool areSame(const Segment& a, const Segment& b) {
  return a.to == b.to && a.from == b.from;
}

uint64_t spanOf(uint64_t stride, uint64_t count, uint64_t bytes) {
  return count == 0 ? 0 : (count - 1) * stride + bytes;
}

}  // namespace

Status StreamProgram::addCopy(const Binding& binding, const Segment& segment) {
  PEERLANE_ASSIGN(std::byte* const to,
                  placeOf(binding, segment.to, segment.toOffset, segment.bytes));
  PEERLANE_ASSIGN(const std::byte* const from,
                  placeOf(binding, segment.from, segment.fromOffset, segment.bytes));
  const kernel::CopyPiece piece{from, to, segment.bytes};
  keepNear();
  bytes_ += piece.bytes;
  if (!pieces_.empty() && touch(pieces_.back(), piece) && areSame(last_, segment))
    pieces_.back().bytes += piece.bytes;
  else
    pieces_.push_back(piece);
  last_ = segment;
  return Status::ok();
}

// The loop of long lists: no Result per piece. add() gets the pieces, neighbours merged.
template <typename Add>
Status StreamProgram::eachPiece(const Binding& binding, const std::vector<Segment>& segments,
                                const Add& add) {
  // Mostly the targets are those of the segment before.
  struct Found {
    TargetId id = kNoTarget;
    std::byte* address = nullptr;
    uint64_t bytes = 0;

    bool holds(const Binding& binding, TargetId target, uint64_t offset, uint64_t count) {
      if (target != id) {
        const bool known = target < binding.targets.size();
        *this = {target, known ? binding.targets[target].address : nullptr,
                 known ? binding.targets[target].bytes : 0};
      }
      return address != nullptr && offset <= bytes && count <= bytes - offset;
    }
  };
  Found to, from;
  // Gathered in local variables, because the compiler must assume that storing a piece changes a
  // member.
  kernel::CopyPiece last;
  const Segment* before = segments.data();
  uint64_t bytes = 0;
  for (const Segment& segment : segments) {
    if (!to.holds(binding, segment.to, segment.toOffset, segment.bytes) ||
        !from.holds(binding, segment.from, segment.fromOffset, segment.bytes)) [[unlikely]]
      return addCopy(binding, segment);  // says why
    bytes += segment.bytes;
    const kernel::CopyPiece piece{from.address + segment.fromOffset, to.address + segment.toOffset,
                                  segment.bytes};
    if (touch(last, piece) && areSame(*before, segment)) {
      last.bytes += piece.bytes;
    } else {
      if (last.bytes != 0) add(last);
      last = piece;
    }
    before = &segment;
  }
  add(last);
  last_ = *before;
  bytes_ += bytes;
  return Status::ok();
}

Status StreamProgram::addSegments(const Binding& binding, const std::vector<Segment>& segments,
                                  PinnedPool* pool) {
  if (segments.empty()) return unsupported("a list without segments");
  if (pool != nullptr && pieces().empty() && segments.size() > kernel::kInlinePieces) {
    PEERLANE_RETURN_IF_ERROR(far_.open(*pool, segments.size()));
    FarPieces::Writer far = far_.begin();
    PEERLANE_RETURN_IF_ERROR(
        eachPiece(binding, segments, [&far](const auto& piece) { far.add(piece); }));
    far_.finish(far);
    // So few travel in the parameters of a launch.
    if (far_.pieces().size() <= kernel::kInlinePieces) keepNear();
    return Status::ok();
  }
  keepNear();
  if (pieces_.empty())
    pieces_ = SpareVector<kernel::CopyPiece>::take(segments.size());
  else
    pieces_.reserve(pieces_.size() + segments.size());
  return eachPiece(binding, segments,
                   [&near = pieces_](const auto& piece) { near.push_back(piece); });
}

void StreamProgram::keepNear() {
  if (far_.empty()) return;
  pieces_.assign(far_.pieces().begin(), far_.pieces().end());
  far_.clear();
}

Status StreamProgram::addList(const Binding& binding, const CopyLayout& list, PinnedPool* pool) {
  if (list.kind == CopyLayout::Kind::kScattered) return addSegments(binding, list.segments, pool);
  if (!pieces().empty() || blocks_.blockBytes != 0)
    return unsupported("more than one list of blocks in a program");
  indexed_ = list.kind == CopyLayout::Kind::kIndexed;
  toNumbers_ = list.toNumbers;
  fromNumbers_ = list.fromNumbers;
  const bool isStrided = list.kind == CopyLayout::Kind::kStrided;
  const Segment& first = list.first;
  const uint64_t toCount = isStrided ? list.count : list.toLimit;
  const uint64_t fromCount = isStrided ? list.count : list.fromLimit;
  PEERLANE_ASSIGN(blocks_.to, placeOf(binding, first.to, first.toOffset,
                                      spanOf(list.toStride, toCount, first.bytes)));
  PEERLANE_ASSIGN(blocks_.from, placeOf(binding, first.from, first.fromOffset,
                                        spanOf(list.fromStride, fromCount, first.bytes)));
  blocks_.toStride = list.toStride;
  blocks_.fromStride = list.fromStride;
  blocks_.blockBytes = first.bytes;
  blocks_.count = indexed_ ? 0 : list.count;
  blocks_.toLimit = toCount;
  blocks_.fromLimit = fromCount;
  bytes_ = indexed_ ? first.bytes : list.count * first.bytes;
  return Status::ok();
}

void StreamProgram::expand(const DeviceIndices& given,
                           std::vector<kernel::CopyPiece>& pieces) const {
  const DeviceIndices indices = indexed_ ? given : numbers();
  const bool isNumbered = indices.count != 0;
  const uint64_t count = indexed_ ? indices.count : blocks_.count;
  const uint64_t bytes = blocks_.blockBytes;
  for (uint64_t i = 0; i < count; ++i) {
    std::byte* to = blocks_.to + (isNumbered ? indices.to[i] : i) * blocks_.toStride;
    const std::byte* from = blocks_.from + (isNumbered ? indices.from[i] : i) * blocks_.fromStride;
    if (!pieces.empty() && touch(pieces.back(), {from, to, bytes}))
      pieces.back().bytes += bytes;
    else
      pieces.push_back({from, to, bytes});
  }
}

Status StreamProgram::expandBlocks() {
  if (indexed_) return unsupported("indexed blocks of memory that is not imported");
  if (blocks_.blockBytes == 0) return Status::ok();
  expand({}, pieces_);
  blocks_ = {};
  toNumbers_.clear();
  fromNumbers_.clear();
  return Status::ok();
}

size_t StreamProgram::descriptorBytes() const {
  return pieces().size() * (sizeof(kernel::CopyPiece) + sizeof(uint64_t));
}

kernel::PieceList StreamProgram::writeDescriptors(std::byte* at, std::byte* seenAt) const {
  const std::span<const kernel::CopyPiece> all = pieces();
  const size_t piecesBytes = all.size_bytes();
  std::memcpy(at, all.data(), piecesBytes);
  auto* ends = reinterpret_cast<uint64_t*>(at + piecesBytes);
  uint64_t tiles = 0;
  for (size_t i = 0; i < all.size(); ++i) ends[i] = tiles += copyTiles(all[i].bytes);
  return {.pieces = reinterpret_cast<const kernel::CopyPiece*>(seenAt),
          .tileEnds = reinterpret_cast<const uint64_t*>(seenAt + piecesBytes),
          .count = all.size(),
          .tiles = tiles,
          .isFar = seenAt == at};
}

Status StreamProgram::addOp(const Program& program, const Op& op, const Binding& binding,
                            PinnedPool* pool) {
  if (counter_ != nullptr) return unsupported("an op after an addition");
  if (op.code == OpCode::kFence || op.code == OpCode::kFlush) {
    isFenced_ = true;
    return Status::ok();
  }
  if (op.code == OpCode::kAdd64 && op.operand.cursor == kNoCursor) {
    PEERLANE_ASSIGN(counter_, placeOf(binding, op.to.target, op.to.offset, sizeof(uint64_t)));
    counterAdd_ = static_cast<uint64_t>(op.operand.delta);
    return Status::ok();
  }
  if (op.code != OpCode::kCopy && op.code != OpCode::kCopyList)
    return unsupported("waits and stores of a message protocol");
  if (isFenced_) return unsupported("copies after a fence");
  TargetId to = op.to.target;
  if (op.code == OpCode::kCopy) {
    if (program.targets[to].slots > 0 || program.targets[op.from.target].slots > 0)
      return unsupported("copies of rings' slots");
    PEERLANE_RETURN_IF_ERROR(
        addCopy(binding, {to, op.from.target, op.to.offset, op.from.offset, op.bytes}));
  } else {
    const CopyLayout& list = program.lists[op.list];
    PEERLANE_RETURN_IF_ERROR(addList(binding, list, pool));
    to = list.kind == CopyLayout::Kind::kScattered ? list.segments.front().to : list.first.to;
  }
  isPut_ = program.targets[to].side == Side::kRemote;
  return Status::ok();
}

void StreamProgram::choose(const DeviceExecutor::Preferences& preferences,
                           const EngineChoice& choice) {
  const uint64_t count = blocks_.blockBytes != 0
                             ? std::max<uint64_t>(1, indexed_ ? 2 : blocks_.count)
                             : pieces().size();
  engine_ = preferences.engine;
  ctas_ = preferences.ctas;
  if (preferences.engine == Engine::kAuto) {
    engine_ =
        preferences.ctas != 0 || indexed_ ? Engine::kSm : choice.choose(isPut_, count, bytes_);
    kernelBehindWork_ = choice.prefersKernelBehindWork(count, bytes_);
    kernelOnOwnStreams_ =
        kernelBehindWork_ ||
        (preferences.repeated && choice.prefersKernelOnOwnStreams(isPut_, count, bytes_));
  }
  if (engine_ == Engine::kInline) ctas_ = 1;
  // Few thread blocks read from a peer faster with bulk copies, and write faster without them.
  if (ctas_ != 0 && ctas_ <= 16 && engine_ == Engine::kSm && !isPut_)
    method_ = kernel::CopyMethod::kBulk;
}

Result<std::unique_ptr<StreamProgram>> StreamProgram::lower(
    const Program& program, std::span<const Op> ops, const Binding& binding,
    const DeviceExecutor::Preferences& preferences, const EngineChoice& choice, PinnedPool* pool) {
  auto made = std::make_unique<StreamProgram>();
  if (std::any_of(program.targets.begin(), program.targets.end(),
                  [](const Target& target) { return target.packets; }))
    return unsupported("copies into LL packets by itself");
  const auto isCopy = [](const Op& op) {
    return op.code == OpCode::kCopy || op.code == OpCode::kCopyList;
  };
  const bool areSeveral = std::count_if(ops.begin(), ops.end(), isCopy) > 1;
  CopyRanges ranges;
  for (const Op& op : ops) {
    PEERLANE_RETURN_IF_ERROR(
        made->addOp(program, op, binding, preferences.isPostedNow ? pool : nullptr));
    if (!areSeveral || !isCopy(op)) continue;
    const CopyRanges::Touched touched = CopyRanges::of(program, binding, op);
    if (ranges.meets(touched)) return unsupported("copies that need an order");
    ranges.add(touched);
  }
  // Posts that are repeated read pieces from the device's memory; that is faster than numbers from
  // the host's.
  if (preferences.repeated && !made->toNumbers_.empty())
    PEERLANE_RETURN_IF_ERROR(made->expandBlocks());
  made->choose(preferences, choice);
  return made;
}

}  // namespace peerlane::stream
