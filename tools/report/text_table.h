// SPDX-License-Identifier: Apache-2.0
//
// TextTable: rows of text in aligned columns, for terminals and logs. External synchronization
// required.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace peerlane {

class TextTable {
 public:
  // One letter per column: 'l' aligns to the left, 'r' to the right.
  explicit TextTable(std::string_view alignments) : alignments_(alignments) {}

  // Missing cells are empty. Requires: no more cells than columns.
  void addRow(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  // Each row is a line that ends with a line break and has no spaces before it.
  std::string toString() const;

 private:
  std::string alignments_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace peerlane
