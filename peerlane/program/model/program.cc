// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/model/program.h"

#include <algorithm>
#include <utility>

namespace peerlane {
namespace {

const char* orderName(Order order) {
  return order == Order::kRelease ? "release" : "relaxed";
}

const char* compareName(Compare compare) {
  switch (compare) {
    case Compare::kGreaterEqual: return ">=";
    case Compare::kEqual: return "==";
    case Compare::kAnd: return "&";
    case Compare::kNor: return "nor";
  }
  return "?";
}

std::string operandText(const Operand& operand) {
  if (operand.cursor == kNoCursor) return std::to_string(operand.delta);
  std::string text = "cursor" + std::to_string(operand.cursor);
  if (operand.delta >= 0) text += '+';
  return text + std::to_string(operand.delta);
}

std::string placeText(const Program& program, const Place& place) {
  if (place.target >= program.targets.size()) return "<no target>";
  const Target& target = program.targets[place.target];
  std::string text = target.side == Side::kRemote ? "peer." : "";
  text += target.name;
  if (target.slots > 0) text += "[" + operandText({target.cursor, place.slotDelta}) + "]";
  if (place.offset != 0) text += "+" + std::to_string(place.offset);
  return text;
}

bool holdsPackets(const Program& program, const Place& place) {
  return place.target < program.targets.size() && program.targets[place.target].packets;
}

std::string opText(const Program& program, const Op& op) {
  switch (op.code) {
    case OpCode::kCopy:
      return "copy  " + placeText(program, op.to) + " <- " + placeText(program, op.from) + ", " +
             std::to_string(op.bytes) + " bytes" +
             (holdsPackets(program, op.to) ? ", tag " + operandText(op.operand) : "");
    case OpCode::kCopyList: {
      const CopyLayout& list = program.lists[op.list];
      const size_t blocks = list.kind == CopyLayout::Kind::kScattered
                                ? list.segments.size()
                                : static_cast<size_t>(list.count);
      return "copy  list of " + std::to_string(blocks);
    }
    case OpCode::kStore:
      return "store " + placeText(program, op.to) + " = " + operandText(op.operand) + " (" +
             orderName(op.order) + ")";
    case OpCode::kAdd64:
      return "add64 " + placeText(program, op.to) + " += " + operandText(op.operand) + " (" +
             orderName(op.order) + ")";
    case OpCode::kWait:
      return "wait  " + placeText(program, op.to) + " " + compareName(op.compare) + " " +
             operandText(op.operand) +
             (holdsPackets(program, op.to) ? ", " + std::to_string(op.bytes) + " bytes" : "");
    case OpCode::kFence: return op.scope == Scope::kDevice ? "fence device" : "fence system";
    case OpCode::kFlush: return "flush " + placeText(program, op.to);
  }
  return "?";
}

// Collects the first defect of a program, so that each rule below is one line.
class Checker {
 public:
  explicit Checker(const Program& program) : program_(program) {}

  Status run() {
    for (const Target& target : program_.targets) {
      if (target.slots > 0 &&
          (target.cursor >= program_.cursorAdvance.size() || target.strideBytes == 0))
        return defect("ring target '" + std::string(target.name) +
                      "' needs a declared cursor and a stride above 0");
    }
    for (index_ = 0; index_ < program_.ops.size(); ++index_)
      PEERLANE_RETURN_IF_ERROR(checkOp(program_.ops[index_]));
    return Status::ok();
  }

 private:
  Status defect(const std::string& what) const {
    return Status(Code::kInvalidArgument, "program '" + std::string(program_.name) + "' op " +
                                              std::to_string(index_) + ": " + what);
  }
  Status checkTarget(TargetId id) const {
    if (id < program_.targets.size()) return Status::ok();
    return defect("target " + std::to_string(id) + " is not declared (" +
                  std::to_string(program_.targets.size()) + " are)");
  }
  Status checkWord(const Op& op) const {
    PEERLANE_RETURN_IF_ERROR(checkTarget(op.to.target));
    if (holdsPackets(program_, op.to)) return defect("a word in LL packets");
    if (op.operand.cursor != kNoCursor && op.operand.cursor >= program_.cursorAdvance.size())
      return defect("cursor " + std::to_string(op.operand.cursor) + " is not declared");
    if (op.to.offset % static_cast<uint64_t>(op.width) != 0)
      return defect("word at offset " + std::to_string(op.to.offset) + " is not aligned to " +
                    std::to_string(static_cast<int>(op.width)) + " bytes");
    return Status::ok();
  }
  Status checkCopy(const Op& op) const {
    PEERLANE_RETURN_IF_ERROR(checkTarget(op.to.target));
    PEERLANE_RETURN_IF_ERROR(checkTarget(op.from.target));
    if (op.bytes == 0) return defect("copy of 0 bytes");
    if (holdsPackets(program_, op.to) && holdsPackets(program_, op.from))
      return defect("copy from LL packets into LL packets");
    if (holdsPackets(program_, op.to) || holdsPackets(program_, op.from)) return checkPackets(op);
    return Status::ok();
  }
  Status checkPackets(const Op& op) const {
    if (op.operand.cursor != kNoCursor && op.operand.cursor >= program_.cursorAdvance.size())
      return defect("cursor " + std::to_string(op.operand.cursor) + " is not declared");
    const Place& place = holdsPackets(program_, op.to) ? op.to : op.from;
    if (place.offset % kPacketPayloadBytes == 0 && op.bytes != 0) return Status::ok();
    return defect("LL packets are used from multiples of 8 bytes on, and for more than 0; not " +
                  std::to_string(op.bytes) + " bytes from " + std::to_string(place.offset) + " on");
  }
  Status checkWait(const Op& op) const {
    PEERLANE_RETURN_IF_ERROR(checkTarget(op.to.target));
    if (!holdsPackets(program_, op.to)) return checkWord(op);
    if (op.compare != Compare::kGreaterEqual) return defect("numbers are waited for with >=");
    return checkPackets(op);
  }
  Status checkList(const Op& op) const {
    if (op.list >= program_.lists.size()) return defect("list is not declared");
    const CopyLayout& list = program_.lists[op.list];
    if (list.kind != CopyLayout::Kind::kScattered) {
      PEERLANE_RETURN_IF_ERROR(checkTarget(list.first.to));
      PEERLANE_RETURN_IF_ERROR(checkTarget(list.first.from));
      if (list.count == 0 || list.first.bytes == 0) return defect("list without blocks");
      const uint64_t numbers = list.kind == CopyLayout::Kind::kNumbered ? list.count : 0;
      if (list.toNumbers.size() != numbers || list.fromNumbers.size() != numbers)
        return defect("list of " + std::to_string(list.count) + " blocks with " +
                      std::to_string(list.toNumbers.size()) + " and " +
                      std::to_string(list.fromNumbers.size()) + " block numbers");
      return Status::ok();
    }
    if (list.segments.empty()) return defect("list without segments");
    for (const Segment& segment : list.segments) {
      if (std::max(segment.to, segment.from) < program_.targets.size()) [[likely]]
        continue;
      PEERLANE_RETURN_IF_ERROR(checkTarget(segment.to));
      PEERLANE_RETURN_IF_ERROR(checkTarget(segment.from));
    }
    return Status::ok();
  }
  Status checkOp(const Op& op) const {
    switch (op.code) {
      case OpCode::kCopy: return checkCopy(op);
      case OpCode::kCopyList: return checkList(op);
      case OpCode::kAdd64:
        if (op.width != Width::k64) return defect("add64 works on 64-bit words only");
        return checkWord(op);
      case OpCode::kStore: return checkWord(op);
      case OpCode::kWait: return checkWait(op);
      case OpCode::kFence: return Status::ok();
      case OpCode::kFlush: return checkTarget(op.to.target);
    }
    return defect("unknown op code " + std::to_string(static_cast<int>(op.code)));
  }

  const Program& program_;
  size_t index_ = 0;
};

}  // namespace

std::string Program::toString() const {
  std::string text = std::string(name) + ":\n";
  for (const Op& op : ops) text += "  " + opText(*this, op) + "\n";
  return text;
}

Status Program::check() const {
  return Checker(*this).run();
}

CursorId ProgramBuilder::cursor(uint32_t advancePerExecution) {
  program_.cursorAdvance.push_back(advancePerExecution);
  return static_cast<CursorId>(program_.cursorAdvance.size() - 1);
}

TargetId ProgramBuilder::target(Target target) {
  program_.targets.push_back(target);
  return static_cast<TargetId>(program_.targets.size() - 1);
}

ProgramBuilder& ProgramBuilder::copy(Place to, Place from, uint64_t bytes) {
  program_.ops.push_back({.code = OpCode::kCopy, .to = to, .from = from, .bytes = bytes});
  return *this;
}

ProgramBuilder& ProgramBuilder::copyPackets(Place to, Place from, uint64_t bytes, Operand number) {
  program_.ops.push_back(
      {.code = OpCode::kCopy, .to = to, .from = from, .bytes = bytes, .operand = number});
  return *this;
}

ProgramBuilder& ProgramBuilder::waitPackets(Place from, Operand number, uint64_t bytes) {
  program_.ops.push_back({.code = OpCode::kWait, .to = from, .bytes = bytes, .operand = number});
  return *this;
}

ProgramBuilder& ProgramBuilder::copyList(CopyLayout layout) {
  program_.lists.push_back(std::move(layout));
  program_.ops.push_back(
      {.code = OpCode::kCopyList, .list = static_cast<uint32_t>(program_.lists.size() - 1)});
  return *this;
}

ProgramBuilder& ProgramBuilder::store(Place word, Operand value, Order order, Width width) {
  program_.ops.push_back(
      {.code = OpCode::kStore, .width = width, .order = order, .to = word, .operand = value});
  return *this;
}

ProgramBuilder& ProgramBuilder::add64(Place word, Operand value, Order order) {
  program_.ops.push_back({.code = OpCode::kAdd64, .order = order, .to = word, .operand = value});
  return *this;
}

ProgramBuilder& ProgramBuilder::wait(Place word, Operand value, Compare compare, Width width) {
  program_.ops.push_back(
      {.code = OpCode::kWait, .width = width, .compare = compare, .to = word, .operand = value});
  return *this;
}

ProgramBuilder& ProgramBuilder::fence(Scope scope) {
  program_.ops.push_back({.code = OpCode::kFence, .scope = scope});
  return *this;
}

ProgramBuilder& ProgramBuilder::flush(TargetId peerTarget) {
  program_.ops.push_back({.code = OpCode::kFlush, .to = {.target = peerTarget}});
  return *this;
}

}  // namespace peerlane
