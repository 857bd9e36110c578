// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/stream/ordered/ordered_lowering.h"

#include <span>
#include <utility>

namespace peerlane::stream {
namespace {

using Kind = OrderedPart::Kind;

const char* nameOf(OpCode code) {
  switch (code) {
    case OpCode::kCopy: return "copy";
    case OpCode::kCopyList: return "list of copies";
    case OpCode::kStore: return "store";
    case OpCode::kAdd64: return "addition";
    case OpCode::kWait: return "wait";
    case OpCode::kFence: return "fence";
    case OpCode::kFlush: return "flush";
  }
  return "op";
}

uint32_t lastOf(size_t count) {
  return static_cast<uint32_t>(count - 1);
}

}  // namespace

Result<OrderedParts> OrderedLowering::run() {
  PEERLANE_RETURN_IF_ERROR(program_.check());
  if (binding_.targets.size() != program_.targets.size())
    return Status(Code::kInvalidArgument,
                  "program '" + std::string(program_.name) + "' has " +
                      std::to_string(program_.targets.size()) + " targets, " +
                      std::to_string(binding_.targets.size()) + " are bound");
  parts_.cursors = program_.cursorAdvance.size();
  for (at_ = 0; at_ < program_.ops.size(); ++at_)
    PEERLANE_RETURN_IF_ERROR(addOp(program_.ops[at_]));
  PEERLANE_RETURN_IF_ERROR(closeCopies());
  if (parts_.order.empty() || parts_.order.back().kind != Kind::kWords)
    parts_.order.push_back({Kind::kWords, static_cast<uint32_t>(parts_.words.size()), 0});
  parts_.words.emplace_back();  // the completion's place
  return std::move(parts_);
}

Status OrderedLowering::addOp(const Op& op) {
  if (op.code == OpCode::kCopy || op.code == OpCode::kCopyList) return addCopy(op);
  PEERLANE_RETURN_IF_ERROR(closeCopies());
  switch (op.code) {
    case OpCode::kStore:
    case OpCode::kWait: return addWord(op);
    case OpCode::kAdd64: return addAddition(op);
    case OpCode::kFence: return addFence(op);
    case OpCode::kFlush: return addFlush(op);
    default: return refuse(Code::kInternal, "an op code that nobody knows");
  }
}

Status OrderedLowering::refuse(Code code, const std::string& why) const {
  return Status(code, "program '" + std::string(program_.name) + "' op " + std::to_string(at_) +
                          ", a " + nameOf(program_.ops[at_].code) + ": " + why);
}

// --- Places ---

Status OrderedLowering::checkTarget(TargetId id) const {
  const Target& target = program_.targets[id];
  const std::string name = "'" + std::string(target.name) + "'";
  if (target.late)
    return refuse(Code::kNotSupported, name +
                                           " is bound late, which a stream cannot wait for; "
                                           "accepted: targets that are known when it is posted");
  if (target.packets)
    return refuse(Code::kNotSupported, name +
                                           " holds LL packets; accepted: plain memory, or a side "
                                           "of a message, which has a kernel of its own");
  if (binding_.targets[id].address == nullptr)
    return refuse(Code::kNotSupported, name +
                                           " is not mapped, so a stream does not reach it; "
                                           "accepted: memory that the GPU can address");
  return Status::ok();
}

Result<OrderedPlace> OrderedLowering::placeOf(const Place& place, uint64_t bytes) const {
  PEERLANE_RETURN_IF_ERROR(checkTarget(place.target));
  const Target& target = program_.targets[place.target];
  const BoundTarget& bound = binding_.targets[place.target];
  const uint64_t before = target.slots == 0 ? 0 : uint64_t{target.slots - 1} * target.strideBytes;
  if (before > bound.bytes || place.offset > bound.bytes - before ||
      bytes > bound.bytes - before - place.offset)
    return refuse(Code::kInvalidArgument, "outside of '" + std::string(target.name) +
                                              "', which has " + std::to_string(bound.bytes) +
                                              " bytes");
  return OrderedPlace{.first = bound.address + place.offset,
                      .slots = target.slots,
                      .strideBytes = target.strideBytes,
                      .slotDelta = place.slotDelta,
                      .cursor = target.cursor};
}

WordPlace OrderedLowering::memoryOf(const OrderedPlace& place) const {
  const WordPlace first = WordPlace::of(place.first);
  if (place.slots < 2) return first;
  const WordPlace last = WordPlace::of(place.first + uint64_t{place.slots - 1} * place.strideBytes);
  return last.kind == first.kind && last.gpu == first.gpu ? first : WordPlace{};
}

// --- Words ---

void OrderedLowering::pushWord(const WordOp& word) {
  if (parts_.order.empty() || parts_.order.back().kind != Kind::kWords)
    parts_.order.push_back({Kind::kWords, static_cast<uint32_t>(parts_.words.size()), 0});
  parts_.words.push_back(word);
  ++parts_.order.back().count;
}

Status OrderedLowering::addWord(const Op& op) {
  const bool isWait = op.code == OpCode::kWait;
  PEERLANE_ASSIGN(const OrderedPlace place, placeOf(op.to, static_cast<uint64_t>(op.width)));
  PEERLANE_RETURN_IF_ERROR(checkWordMemory(op, memoryOf(place)));
  WordOp word{.kind = isWait ? WordOp::Kind::kWait : WordOp::Kind::kStore,
              .width = op.width,
              .compare = op.compare,
              .at = place.first,
              .value = static_cast<uint64_t>(op.operand.delta)};
  const bool moves = place.slots > 0 || op.operand.cursor != kNoCursor;
  if (isWait && op.operand.cursor == kNoCursor)
    if (const Status hopeless = checkWait(word); !hopeless.isOk())
      return refuse(hopeless.code(), std::string(hopeless.message()));
  parts_.waits = parts_.waits || isWait;
  // Relaxed stores, too, come after a system-wide fence: streams have no others.
  pushWord(word);
  if (moves) parts_.moving.push_back({lastOf(parts_.words.size()), place, op.operand});
  return Status::ok();
}

Status OrderedLowering::checkWordMemory(const Op& op, const WordPlace& memory) const {
  const bool isWait = op.code == OpCode::kWait;
  const std::string name = "'" + std::string(program_.targets[op.to.target].name) + "'";
  const std::string gpu = "cuda:" + std::to_string(abilities_.gpu);
  if (op.width == Width::k64 && !abilities_.has64Bits)
    return refuse(Code::kNotSupported,
                  "streams of " + gpu + " have no memory operations on 64 bits; accepted: 32 bits");
  if (isWait && op.compare == Compare::kNor && !abilities_.hasNor)
    return refuse(Code::kNotSupported,
                  "streams of " + gpu + " do not compare by nor; accepted: >=, == and &");
  if (memory.kind == WordPlace::Kind::kPinned) return Status::ok();
  // A copy that should release the wait can stand behind it in a hardware queue, so the word must
  // be one that a CPU stores.
  if (isWait)
    return refuse(Code::kNotSupported,
                  name +
                      " is no pinned host memory, so no CPU could release the wait by a store; "
                      "accepted: pinned host memory that is mapped for the GPU");
  if (memory.kind == WordPlace::Kind::kGpu) return Status::ok();
  return refuse(Code::kNotSupported, name + " is no memory that " + gpu +
                                         " stores to; accepted: pinned host memory or memory of "
                                         "a GPU");
}

Status OrderedLowering::addAddition(const Op& op) {
  PEERLANE_ASSIGN(const OrderedPlace place, placeOf(op.to, sizeof(uint64_t)));
  PEERLANE_RETURN_IF_ERROR(checkAdded(op, memoryOf(place)));
  parts_.additions.push_back({place, op.operand});
  parts_.order.push_back({Kind::kAddition, lastOf(parts_.additions.size())});
  return Status::ok();
}

Status OrderedLowering::checkAdded(const Op& op, const WordPlace& memory) const {
  const bool isAtomic = (memory.kind == WordPlace::Kind::kPinned && abilities_.addsToHost) ||
                        (memory.kind == WordPlace::Kind::kGpu && abilities_.addsTo(memory.gpu));
  if (isAtomic) return Status::ok();
  return refuse(Code::kNotSupported,
                "cuda:" + std::to_string(abilities_.gpu) + " does not add atomically to '" +
                    program_.targets[op.to.target].name +
                    "'; accepted: a counter in its own memory or behind NVLink, or a store of a "
                    "total that one writer keeps");
}

// --- Fences ---

bool OrderedLowering::isFencedNext() const {
  if (at_ + 1 >= program_.ops.size()) return true;  // the completion is a store
  const OpCode next = program_.ops[at_ + 1].code;
  return next == OpCode::kStore || next == OpCode::kAdd64;
}

// A stream begins an op when the one before has ended, and stores a word after a system-wide fence;
// so does the kernel that adds. Whoever learns of the stream's work by such a word needs no fence
// more. A barrier is left for those who look at copied bytes, and between a store and a wait.
Status OrderedLowering::addFence(const Op& op) {
  if (!isFencedNext()) pushWord({.kind = WordOp::Kind::kBarrier, .scope = op.scope});
  return Status::ok();
}

// To the peer: it sees what a system-wide fence makes visible, because its memory is mapped. From
// others, which is what a flush of this side's own target asks for: host memory needs nothing, and
// neither does a GPU for which the driver orders the writes of NICs.
Status OrderedLowering::addFlush(const Op& op) {
  PEERLANE_RETURN_IF_ERROR(checkTarget(op.to.target));
  if (program_.targets[op.to.target].side == Side::kRemote) return addFence({});
  const WordPlace memory = WordPlace::of(binding_.targets[op.to.target].address);
  if (memory.kind != WordPlace::Kind::kGpu || abilities_.ordersNicWrites) return Status::ok();
  if (!abilities_.hasFlush)
    return refuse(Code::kNotSupported,
                  "streams of cuda:" + std::to_string(abilities_.gpu) +
                      " cannot flush what other devices wrote into its memory; accepted: a target "
                      "in host memory, or a flush by the host before the post");
  pushWord({.kind = WordOp::Kind::kFlush});
  return Status::ok();
}

// --- Copies ---

Status OrderedLowering::checkCopy(const Op& op) const {
  const auto check = [&](const Segment& segment) -> Status {
    PEERLANE_RETURN_IF_ERROR(checkTarget(segment.to));
    PEERLANE_RETURN_IF_ERROR(checkTarget(segment.from));
    if (program_.targets[segment.to].slots > 0 || program_.targets[segment.from].slots > 0)
      return refuse(Code::kNotSupported, "a list in a ring; accepted: a copy for each block");
    return Status::ok();
  };
  if (op.code == OpCode::kCopy) return check({op.to.target, op.from.target, 0, 0, 0});
  const CopyLayout& list = program_.lists[op.list];
  if (list.kind == CopyLayout::Kind::kIndexed)
    return refuse(Code::kNotSupported,
                  "block numbers that come with a post; accepted: numbers in the program");
  if (list.kind != CopyLayout::Kind::kScattered) return check(list.first);
  for (const Segment& segment : list.segments) PEERLANE_RETURN_IF_ERROR(check(segment));
  return Status::ok();
}

// A part's copies are in no order among themselves, so a copy that meets what one before it wrote
// or read begins another part. StreamProgram takes one list of blocks, and nothing beside it.
Status OrderedLowering::addCopy(const Op& op) {
  if (op.code == OpCode::kCopy && (isRing(op.to) || isRing(op.from))) return addSlotCopy(op);
  PEERLANE_RETURN_IF_ERROR(checkCopy(op));
  const CopyRanges::Touched touched = CopyRanges::of(program_, binding_, op);
  const bool isOfBlocks =
      op.code == OpCode::kCopyList && program_.lists[op.list].kind != CopyLayout::Kind::kScattered;
  if (isOfBlocks || copies_.meets(touched)) PEERLANE_RETURN_IF_ERROR(closeCopies());
  copies_.add(touched);
  return isOfBlocks ? closeCopies(1) : Status::ok();
}

// They are the ops before this one; with `here` = 1, up to this one.
Status OrderedLowering::closeCopies(size_t here) {
  if (copies_.count() == 0) return Status::ok();
  const size_t first = at_ + here - copies_.count();
  const std::span<const Op> ops = std::span(program_.ops).subspan(first, copies_.count());
  copies_.clear();
  DeviceExecutor::Preferences preferences = preferences_;
  preferences.repeated = true;  // descriptors are made now, and not by a post
  preferences.isPostedNow = false;
  auto copies = StreamProgram::lower(program_, ops, binding_, preferences, choice_);
  if (!copies.isOk()) {
    at_ = first;
    return refuse(copies.status().code(), std::string(copies.status().message()));
  }
  if ((*copies)->engine() == Engine::kCe) PEERLANE_RETURN_IF_ERROR((*copies)->expandBlocks());
  parts_.bytes += (*copies)->bytes();
  parts_.copies.push_back(std::move(*copies));
  parts_.order.push_back({Kind::kCopies, lastOf(parts_.copies.size())});
  return Status::ok();
}

Status OrderedLowering::addSlotCopy(const Op& op) {
  PEERLANE_RETURN_IF_ERROR(closeCopies());
  PEERLANE_ASSIGN(const OrderedPlace to, placeOf(op.to, op.bytes));
  PEERLANE_ASSIGN(const OrderedPlace from, placeOf(op.from, op.bytes));
  parts_.slotCopies.push_back({to, from, op.bytes});
  parts_.order.push_back({Kind::kSlotCopy, lastOf(parts_.slotCopies.size())});
  parts_.bytes += op.bytes;
  return Status::ok();
}

}  // namespace peerlane::stream
