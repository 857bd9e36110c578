// SPDX-License-Identifier: Apache-2.0
//
// Cells: the bytes of a scenario cut into the fewest pieces that no access divides, so that a state
// is a few dozen numbers whatever the sizes of the programs are. External synchronization required.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "explore/explorer.h"

namespace peerlane::explorer {

class Cells {
 public:
  explicit Cells(const std::vector<Area>& areas);

  // False when the range does not lie in its area.
  bool cut(const Range& range);
  // Cuts of one end are cuts of the other. Requires: both the same size and cut().
  void link(const Range& to, const Range& from) { links_.emplace_back(to, from); }
  // After the last cut and link.
  void close();

  uint32_t count() const { return count_; }
  // In the order of their addresses. Requires: the range was cut.
  std::vector<uint32_t> of(const Range& range) const;
  uint64_t offsetOf(uint32_t cell) const { return offsets_[cell]; }
  // "inbox+64"
  std::string nameOf(uint32_t cell) const;

 private:
  bool copyCuts(const Range& to, const Range& from);

  const std::vector<Area>& areas_;
  std::vector<std::set<uint64_t>> cuts_;  // by area
  std::vector<std::pair<Range, Range>> links_;
  std::vector<uint32_t> first_;    // first cell of each area
  std::vector<uint64_t> offsets_;  // of each cell
  std::vector<uint32_t> area_;     // of each cell
  uint32_t count_ = 0;
};

}  // namespace peerlane::explorer
