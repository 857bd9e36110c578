// SPDX-License-Identifier: Apache-2.0
#include "tools/report/text_table.h"

#include <algorithm>

namespace peerlane {

std::string TextTable::toString() const {
  std::vector<size_t> widths(alignments_.size(), 0);
  for (const auto& row : rows_)
    for (size_t column = 0; column < row.size(); ++column)
      widths.at(column) = std::max(widths.at(column), row[column].size());
  std::string text;
  for (const auto& row : rows_) {
    std::string line;
    for (size_t column = 0; column < row.size(); ++column) {
      const std::string padding(widths[column] - row[column].size(), ' ');
      if (column > 0) line += "  ";
      line += alignments_[column] == 'r' ? padding + row[column] : row[column] + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace peerlane
