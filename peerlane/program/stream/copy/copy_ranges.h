// SPDX-License-Identifier: Apache-2.0
//
// CopyRanges: what a run of copies touches, to tell whether one more may be made together with
// them, in any order. Of a list the whole range counts, from its first byte to its last. External
// synchronization required.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "peerlane/program/model/binding.h"
#include "peerlane/program/model/program.h"

namespace peerlane::stream {

class CopyRanges {
 public:
  struct Range {
    uintptr_t begin = UINTPTR_MAX, end = 0;

    void add(const BoundTarget& target, uint64_t offset, uint64_t bytes) {
      const uintptr_t at = reinterpret_cast<uintptr_t>(target.address) + offset;
      begin = std::min(begin, at);
      end = std::max(end, at + bytes);
    }
    bool meets(const Range& other) const { return begin < other.end && other.begin < end; }
  };
  struct Touched {
    Range to, from;
  };

  // Of a copy, or of a list but an indexed one.
  static Touched of(const Program& program, const Binding& binding, const Op& op) {
    Touched touched;
    const auto add = [&](const Segment& segment) {
      touched.to.add(binding.targets[segment.to], segment.toOffset, segment.bytes);
      touched.from.add(binding.targets[segment.from], segment.fromOffset, segment.bytes);
    };
    if (op.code == OpCode::kCopy)
      add({op.to.target, op.from.target, op.to.offset, op.from.offset, op.bytes});
    else
      program.lists[op.list].eachBlock(add);
    return touched;
  }
  // It reads what one of them writes, or writes what one of them reads or writes.
  bool meets(const Touched& touched) const {
    return std::any_of(all_.begin(), all_.end(), [&](const Touched& before) {
      return touched.to.meets(before.to) || touched.to.meets(before.from) ||
             touched.from.meets(before.to);
    });
  }
  void add(const Touched& touched) { all_.push_back(touched); }
  void clear() { all_.clear(); }
  size_t count() const { return all_.size(); }

 private:
  std::vector<Touched> all_;
};

}  // namespace peerlane::stream
