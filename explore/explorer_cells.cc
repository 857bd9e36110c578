// SPDX-License-Identifier: Apache-2.0
#include "explore/explorer_cells.h"

#include <iterator>

namespace peerlane::explorer {

Cells::Cells(const std::vector<Area>& areas) : areas_(areas), cuts_(areas.size()) {}

bool Cells::cut(const Range& range) {
  if (range.area >= areas_.size() || range.bytes == 0) return false;
  const uint64_t size = areas_[range.area].bytes;
  if (range.offset > size || range.bytes > size - range.offset) return false;
  cuts_[range.area].insert({range.offset, range.offset + range.bytes});
  return true;
}

bool Cells::copyCuts(const Range& to, const Range& from) {
  std::set<uint64_t>& target = cuts_[to.area];
  const size_t before = target.size();
  const std::set<uint64_t> source = cuts_[from.area];  // a copy: both may be the same area
  for (auto at = source.lower_bound(from.offset);
       at != source.end() && *at <= from.offset + from.bytes; ++at)
    target.insert(to.offset + (*at - from.offset));
  return target.size() != before;
}

void Cells::close() {
  for (bool changed = true; changed;) {
    changed = false;
    for (const auto& [to, from] : links_) {
      changed |= copyCuts(to, from);
      changed |= copyCuts(from, to);
    }
  }
  for (uint32_t area = 0; area < areas_.size(); ++area) {
    first_.push_back(count_);
    if (cuts_[area].empty()) continue;
    // Between the last cut and its predecessor lies the last cell.
    for (auto at = cuts_[area].begin(); std::next(at) != cuts_[area].end(); ++at) {
      offsets_.push_back(*at);
      area_.push_back(area);
      ++count_;
    }
  }
}

std::vector<uint32_t> Cells::of(const Range& range) const {
  const std::set<uint64_t>& cuts = cuts_[range.area];
  auto at = cuts.find(range.offset);
  uint32_t cell = first_[range.area] + static_cast<uint32_t>(std::distance(cuts.begin(), at));
  std::vector<uint32_t> cells;
  for (; *at < range.offset + range.bytes; ++at) cells.push_back(cell++);
  return cells;
}

std::string Cells::nameOf(uint32_t cell) const {
  const std::string& name = areas_[area_[cell]].name;
  return offsets_[cell] == 0 ? name : name + "+" + std::to_string(offsets_[cell]);
}

}  // namespace peerlane::explorer
