// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/model/executor_abilities.h"

#include <string>

namespace peerlane {
namespace {

const char* nameOf(OpCode code) {
  switch (code) {
    case OpCode::kCopy: return "copies";
    case OpCode::kCopyList: return "copies of lists";
    case OpCode::kStore: return "stores of words";
    case OpCode::kAdd64: return "additions to words";
    case OpCode::kWait: return "waits for words";
    case OpCode::kFence: return "fences";
    case OpCode::kFlush: return "flushes";
  }
  return "an op that is unknown";
}

const char* nameOf(Compare compare) {
  switch (compare) {
    case Compare::kGreaterEqual: return ">=";
    case Compare::kEqual: return "==";
    case Compare::kAnd: return "&";
    case Compare::kNor: return "nor";
  }
  return "a compare that is unknown";
}

bool isCopy(OpCode code) {
  return code == OpCode::kCopy || code == OpCode::kCopyList;
}

std::string bitsOf(Width width) {
  return std::to_string(8 * static_cast<unsigned>(width)) + " bits";
}

}  // namespace

Status ExecutorAbilities::check(const Program& program) const {
  const auto lacks = [&](const std::string& what) {
    return Status(Code::kNotSupported, std::string(name) + " has no " + what + ", which program '" +
                                           program.name + "' needs");
  };
  for (const Op& op : program.ops) {
    if (!ops.has(op.code)) return lacks(nameOf(op.code));
    if (isCopy(op.code) && !reachesMemory) return lacks("reach of the memory that is copied");
    if (op.code == OpCode::kStore && !storeWidths.has(op.width))
      return lacks("stores of " + bitsOf(op.width));
    if (op.code != OpCode::kWait) continue;
    if (!waitWidths.has(op.width)) return lacks("waits for words of " + bitsOf(op.width));
    if (!compares.has(op.compare))
      return lacks("compare '" + std::string(nameOf(op.compare)) + "' in waits");
  }
  return Status::ok();
}

}  // namespace peerlane
