// SPDX-License-Identifier: Apache-2.0
#include "tools/nixl/python_answer.h"

#include <algorithm>

namespace peerlane {
namespace {

std::vector<std::string> pieces(const std::string& text, char separator) {
  std::vector<std::string> found;
  for (size_t from = 0; from <= text.size();) {
    const size_t end = std::min(text.find(separator, from), text.size());
    found.push_back(text.substr(from, end - from));
    from = end + 1;
  }
  return found;
}

}  // namespace

Result<PythonAnswer> PythonAnswer::ask(const std::string& python, const PythonScript& script,
                                       const std::vector<std::string>& arguments) {
  std::vector<std::string> words{python, "-c", std::string(kScriptBegin) + script.text,
                                 script.name};
  words.insert(words.end(), arguments.begin(), arguments.end());
  PEERLANE_ASSIGN(ProgramEnd end, runProgram(std::move(words), script.timeout));
  std::vector<Cells> rows;
  for (const std::string& line : pieces(end.out, '\n')) {
    Cells cells = pieces(line, '\t');
    if (cells.size() < 3 || cells.front() != kRowMark) continue;
    cells.erase(cells.begin());
    rows.push_back(std::move(cells));
  }
  return PythonAnswer(std::move(end), std::move(rows));
}

std::vector<PythonAnswer::Cells> PythonAnswer::rows(const std::string& key) const {
  std::vector<Cells> found;
  for (const Cells& row : rows_)
    if (row.front() == key) found.emplace_back(row.begin() + 1, row.end());
  return found;
}

std::string PythonAnswer::cell(const std::string& key) const {
  for (const Cells& row : rows_)
    if (row.front() == key) return row[1];
  return "";
}

}  // namespace peerlane
