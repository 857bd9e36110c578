// SPDX-License-Identifier: Apache-2.0
//
// TargetTable: what the target numbers in the programs of one triggered queue mean: an address of
// the host, bytes, rights, and for agents the peer's memory. The first rows are the words of
// trigger_protocol.h; memory gets its row when it is first posted and keeps it while anything that
// was posted may name it. The poster's alone.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "peerlane/core/status.h"
#include "peerlane/program/model/binding.h"
#include "peerlane/program/model/program.h"

namespace peerlane {

class TargetTable {
 public:
  // More regions than any queue uses at once; each commit copies the rows.
  static constexpr size_t kMostRows = 256;

  // Rows that stay. Called before add().
  void addWord(const char* name, Side side, const BoundTarget& bound);
  // Where such a row's memory lies, which nothing has named yet.
  void placeWord(TargetId row, std::byte* address) { bound_[row].address = address; }
  // The number of this memory: its row, or a new one. kUnavailable: there are too many.
  Result<TargetId> add(const Target& target, const BoundTarget& bound);
  // Nothing that was posted names memory: its rows go.
  void forgetMemory();

  std::span<const Target> targets() const { return targets_; }
  std::span<const BoundTarget> bound() const { return bound_; }
  bool isFull() const { return targets_.size() >= kMostRows; }

 private:
  std::vector<Target> targets_;
  std::vector<BoundTarget> bound_;
  size_t words_ = 0;
};

}  // namespace peerlane
