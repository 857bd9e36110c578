// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/trigger/target_table.h"

#include <string>

namespace peerlane {
namespace {

// A region that was imported anew may lie where an earlier one lay, with another mapping.
bool isSame(const BoundTarget& one, const BoundTarget& other) {
  return one.address == other.address && one.bytes == other.bytes && one.remote == other.remote &&
         one.remoteOffset == other.remoteOffset && one.waker == other.waker;
}

}  // namespace

void TargetTable::addWord(const char* name, Side side, const BoundTarget& bound) {
  targets_.push_back({.name = name, .side = side});
  bound_.push_back(bound);
  ++words_;
}

Result<TargetId> TargetTable::add(const Target& target, const BoundTarget& bound) {
  for (size_t i = words_; i < bound_.size(); ++i)
    if (isSame(bound_[i], bound)) return static_cast<TargetId>(i);
  if (isFull())
    return Status(Code::kUnavailable, "the queue has " + std::to_string(kMostRows) +
                                          " targets, which is the most; poll the commits that are "
                                          "complete, and post again");
  targets_.push_back(target);
  bound_.push_back(bound);
  return static_cast<TargetId>(bound_.size() - 1);
}

void TargetTable::forgetMemory() {
  targets_.resize(words_);
  bound_.resize(words_);
}

}  // namespace peerlane
