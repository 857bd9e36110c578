// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/cpu/cpu_program.h"

#include <cstring>
#include <string>
#include <utility>

#include "peerlane/program/words/word.h"

namespace peerlane::cpu {
namespace {

bool isCopy(const Op& op) {
  return op.code == OpCode::kCopy || op.code == OpCode::kCopyList;
}

}  // namespace

void CpuProgram::clear() {
  program_ = {};
  binding_ = {};
  extents_.clear();
  mapped_.clear();
  pieces_.clear();
  straight_.clear();
  copier_ = nullptr;
  isStraight_ = false;
}

bool CpuProgram::isFixed(TargetId target) const {
  return !program_.targets[target].late && program_.targets[target].slots == 0;
}

Status CpuProgram::checkRange(TargetId id, uint64_t offset, uint64_t bytes) const {
  const Target& target = program_.targets[id];
  if (target.late) return Status::ok();
  const BoundTarget& bound = binding_.targets[id];
  if (bound.address == nullptr && bound.remote == nullptr)
    return Status(Code::kInvalidArgument, "program '" + std::string(program_.name) + "': target '" +
                                              target.name + "' is not bound");
  if (bound.address == nullptr && binding_.mailbox == nullptr)
    return Status(Code::kNotSupported, "program '" + std::string(program_.name) + "': target '" +
                                           target.name +
                                           "' is reached by an agent and there is no mailbox");
  const uint64_t room = target.slots > 0 ? target.strideBytes : bound.bytes;
  const uint64_t needed = target.slots > 0 ? uint64_t{target.slots} * target.strideBytes : 0;
  if (bytes > room || offset > room - bytes || needed > bound.bytes)
    return Status(Code::kInvalidArgument, "target '" + std::string(target.name) + "': range [" +
                                              std::to_string(offset) + ", +" +
                                              std::to_string(bytes) + ") lies outside its " +
                                              std::to_string(room) + " bytes");
  return Status::ok();
}

// Lists are lowered once, in prepare(), so their targets must already be bound then.
Status CpuProgram::checkFixed(const Segment& segment) const {
  for (const TargetId id : {segment.to, segment.from})
    if (!isFixed(id))
      return Status(Code::kNotSupported, "a list touches '" +
                                             std::string(program_.targets[id].name) +
                                             "', which is a ring or bound late");
  return Status::ok();
}

Status CpuProgram::addPiece(const Segment& segment, Extent& extent) {
  PEERLANE_RETURN_IF_ERROR(checkFixed(segment));
  const BoundTarget& to = binding_.targets[segment.to];
  const BoundTarget& from = binding_.targets[segment.from];
  const auto isWithin = [&segment](const BoundTarget& target, uint64_t offset) {
    return target.address != nullptr && segment.bytes <= target.bytes &&
           offset <= target.bytes - segment.bytes;
  };
  if (!extent.agent && isWithin(to, segment.toOffset) && isWithin(from, segment.fromOffset)) {
    mapped_.push_back(
        {to.address + segment.toOffset, from.address + segment.fromOffset, segment.bytes});
    extent.bytes += segment.bytes;
    extent.mayBeCut |= to.mayBeCut || from.mayBeCut;
    return Status::ok();
  }
  PEERLANE_RETURN_IF_ERROR(checkRange(segment.to, segment.toOffset, segment.bytes));
  PEERLANE_RETURN_IF_ERROR(checkRange(segment.from, segment.fromOffset, segment.bytes));
  if (to.address != nullptr && from.address != nullptr)
    return Status(Code::kNotSupported,
                  "one list mixes targets that are mapped and targets that an agent reaches");
  const bool isPut = to.address == nullptr;
  if ((isPut && from.address == nullptr) ||
      (extent.count > 0 && (!extent.agent || extent.isPut != isPut)))
    return Status(Code::kNotSupported,
                  "one list mixes directions, or both of its sides are reached by an agent");
  extent.agent = true;
  extent.isPut = isPut;
  const BoundTarget& remote = isPut ? to : from;
  const bool goesOn = extent.count > 0 && extent.isOurs && pieces_.back().remote == remote.remote;
  extent.isOurs = isPut && from.isOurs && (extent.count == 0 || goesOn);
  if (extent.count > 0 && pieces_.back().remote->agent != remote.remote->agent)
    return Status(Code::kNotSupported,
                  "one list mixes memory that agents of several links reach; make a post for each");
  pieces_.push_back(
      {isPut ? from.address + segment.fromOffset : to.address + segment.toOffset, remote.remote,
       remote.remoteOffset + (isPut ? segment.toOffset : segment.fromOffset), segment.bytes});
  return Status::ok();
}

Status CpuProgram::prepareOp(const Op& op, Extent& extent) {
  if (op.code == OpCode::kFence || op.code == OpCode::kFlush) return Status::ok();
  for (const TargetId id : {op.to.target, op.from.target})
    if (id != kNoTarget && program_.targets[id].packets)
      return Status(Code::kNotSupported, "program '" + std::string(program_.name) + "': '" +
                                             program_.targets[id].name +
                                             "' holds LL packets, which only GPUs use");
  if (!isCopy(op)) {
    PEERLANE_RETURN_IF_ERROR(
        checkRange(op.to.target, op.to.offset, static_cast<uint64_t>(op.width)));
    const Target& target = program_.targets[op.to.target];
    if (op.code == OpCode::kWait && !target.late &&
        binding_.targets[op.to.target].address == nullptr)
      return Status(Code::kNotSupported, "program '" + std::string(program_.name) +
                                             "' waits for '" + target.name +
                                             "', which plain loads do not reach");
    return Status::ok();
  }
  if (op.code == OpCode::kCopy) {
    const Segment whole{op.to.target, op.from.target, op.to.offset, op.from.offset, op.bytes};
    if (isFixed(op.to.target) && isFixed(op.from.target)) {
      PEERLANE_RETURN_IF_ERROR(addPiece(whole, extent));
      ++extent.count;
      return Status::ok();
    }
    extent.deferred = true;
    PEERLANE_RETURN_IF_ERROR(checkRange(op.to.target, op.to.offset, op.bytes));
    return checkRange(op.from.target, op.from.offset, op.bytes);
  }
  const CopyLayout& list = program_.lists[op.list];
  if (list.kind == CopyLayout::Kind::kIndexed) {
    extent.deferred = true;
    const Segment& first = list.first;
    PEERLANE_RETURN_IF_ERROR(checkFixed(first));
    const uint64_t toEnd = list.toLimit == 0 ? 0 : (list.toLimit - 1) * list.toStride + first.bytes;
    const uint64_t fromEnd =
        list.fromLimit == 0 ? 0 : (list.fromLimit - 1) * list.fromStride + first.bytes;
    PEERLANE_RETURN_IF_ERROR(checkRange(first.to, first.toOffset, toEnd));
    return checkRange(first.from, first.fromOffset, fromEnd);
  }
  const bool isScattered = list.kind == CopyLayout::Kind::kScattered;
  const uint64_t count = isScattered ? list.segments.size() : list.count;
  const Segment& any = isScattered ? list.segments.front() : list.first;
  const bool isMapped =
      binding_.targets[any.to].address != nullptr && binding_.targets[any.from].address != nullptr;
  if (isMapped)
    mapped_.reserve(mapped_.size() + count);
  else
    pieces_.reserve(pieces_.size() + count);
  Status status;
  list.eachBlock([&](const Segment& segment) {
    if (!status.isOk()) return;
    status = addPiece(segment, extent);
    ++extent.count;
  });
  return status;
}

// False when the op needs a CpuRun.
bool CpuProgram::addStraight(const Op& op, const Extent& extent) {
  StraightStep step;
  step.endPiece = static_cast<uint32_t>(mapped_.size());
  step.bytes = extent.bytes;
  switch (op.code) {
    case OpCode::kCopy:
    case OpCode::kCopyList:
      if (extent.agent || extent.deferred || extent.mayBeCut) return false;
      break;
    case OpCode::kStore:
    case OpCode::kAdd64: {
      const BoundTarget& target = binding_.targets[op.to.target];
      if (!isFixed(op.to.target) || target.address == nullptr || op.operand.cursor != kNoCursor)
        return false;
      const std::memory_order order =
          op.order == Order::kRelease ? std::memory_order_release : std::memory_order_relaxed;
      step.hasWord = true;
      step.word = {op.code,
                   op.width,
                   order,
                   target.address + op.to.offset,
                   static_cast<uint64_t>(op.operand.delta),
                   target.waker};
      break;
    }
    case OpCode::kFence: return true;  // one thread's own stores, in order
    case OpCode::kFlush: return binding_.targets[op.to.target].address != nullptr;
    case OpCode::kWait: return false;
  }
  straight_.push_back(step);
  return true;
}

void CpuProgram::runStraight() const {
  uint32_t at = 0;
  for (const StraightStep& step : straight_) {
    if (copier_ != nullptr && step.bytes >= copier_->least()) [[unlikely]] {
      const std::span pieces(mapped_.data() + at, step.endPiece - at);
      copier_->copy({step.bytes, pieces.size()}, pieces, step.bytes);
      at = step.endPiece;
    }
    for (; at < step.endPiece; ++at) {
      const MappedPiece& piece = mapped_[at];
      if (piece.bytes == 8)
        std::memcpy(piece.to, piece.from, 8);  // inline: a flag or an index
      else
        std::memcpy(piece.to, piece.from, piece.bytes);
    }
    if (!step.hasWord) continue;
    const StraightWord& word = step.word;
    if (word.code == OpCode::kAdd64)
      addWord(word.at, word.value);
    else
      storeWord(word.at, word.width, word.value, word.order);
    if (word.waker != nullptr) {
      if (word.code != OpCode::kAdd64) std::atomic_thread_fence(std::memory_order_seq_cst);
      word.waker->ring();
    }
  }
}

Status CpuProgram::prepare(Program program, Binding binding, const HostCopier* copier) {
  clear();
  copier_ = copier;
  program_ = std::move(program);
  binding_ = std::move(binding);
  PEERLANE_RETURN_IF_ERROR(program_.check());
  if (binding_.targets.size() != program_.targets.size())
    return Status(Code::kInvalidArgument,
                  "program '" + std::string(program_.name) + "' has " +
                      std::to_string(program_.targets.size()) + " targets, " +
                      std::to_string(binding_.targets.size()) + " are bound");
  for (size_t id = CpuRun::kMaxLateTargets; id < program_.targets.size(); ++id)
    if (program_.targets[id].late)
      return Status(Code::kNotSupported, "the CPU executor binds late targets only below number " +
                                             std::to_string(CpuRun::kMaxLateTargets));
  if (program_.cursorAdvance.size() > CpuRun::kMaxCursors)
    return Status(Code::kNotSupported, "the CPU executor runs programs of at most " +
                                           std::to_string(CpuRun::kMaxCursors) + " cursors");
  bool straight = true;
  for (const Op& op : program_.ops) {
    Extent extent;
    const size_t mappedBefore = mapped_.size();
    const size_t piecesBefore = pieces_.size();
    PEERLANE_RETURN_IF_ERROR(prepareOp(op, extent));
    extent.first = static_cast<uint32_t>(extent.agent ? piecesBefore : mappedBefore);
    straight = straight && addStraight(op, extent);
    extents_.push_back(extent);
  }
  isStraight_ = straight;
  if (!straight) straight_.clear();
  return Status::ok();
}

}  // namespace peerlane::cpu
