// SPDX-License-Identifier: Apache-2.0
//
// PythonAnswer: what a Python printed when it ran one of our scripts. Immutable after creation.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "peerlane/core/status.h"
#include "tools/nixl/program_run.h"
#include "tools/nixl/python_scripts.h"

namespace peerlane {

class PythonAnswer {
 public:
  using Cells = std::vector<std::string>;

  // Runs `python -c SCRIPT NAME ARGUMENTS...`. Errors of runProgram; how the script itself ended is
  // part of the answer.
  static Result<PythonAnswer> ask(const std::string& python, const PythonScript& script,
                                  const std::vector<std::string>& arguments = {});

  // The rows that begin with `key`, without it. Other lines are skipped.
  std::vector<Cells> rows(const std::string& key) const;
  // The one cell of the first such row; empty where there is none.
  std::string cell(const std::string& key) const;
  const ProgramEnd& end() const { return end_; }

 private:
  PythonAnswer(ProgramEnd end, std::vector<Cells> rows)
      : end_(std::move(end)), rows_(std::move(rows)) {}

  ProgramEnd end_;
  std::vector<Cells> rows_;
};

}  // namespace peerlane
