// SPDX-License-Identifier: Apache-2.0
#include "tools/nixl/nixl_wheel.h"

#include <filesystem>

#include "peerlane/core/text.h"
#include "tools/nixl/python_answer.h"

namespace peerlane {
namespace {

Status noPython(const std::string& python, const ProgramEnd& end) {
  std::string why = end.failure.empty() ? "did not answer as a Python does" : end.failure;
  if (!end.lastError().empty()) why += ", saying " + peerlane::quoted(end.lastError(), 400);
  return Status(Code::kUnavailable, peerlane::quoted(python, 4096) + " " + why +
                                        "; accepted is a Python 3.8 or newer that has NIXL");
}

}  // namespace

Result<std::vector<NixlWheel>> findNixlWheels(const std::string& python) {
  if (python.empty())
    return Status(Code::kInvalidArgument,
                  "the Python is \"\"; accepted is a program, such as python3 or venv/bin/python");
  PEERLANE_ASSIGN(const PythonAnswer answer, PythonAnswer::ask(python, kFindWheels));
  const std::string pythonVersion = answer.cell("python");
  if (pythonVersion.empty() || !answer.end().failure.empty()) return noPython(python, answer.end());
  std::vector<NixlWheel> wheels;
  for (const PythonAnswer::Cells& cells : answer.rows("wheel")) {
    if (cells.size() != 3) return noPython(python, answer.end());
    NixlWheel wheel{.python = python,
                    .module = cells[0],
                    .version = cells[1],
                    .plugins = cells[2] + "/." + cells[0] + ".mesonpy.libs/plugins"};
    std::error_code ignored;
    if (!std::filesystem::is_directory(wheel.plugins, ignored))
      return Status(Code::kNotSupported,
                    wheel.name() + " has no folder " + peerlane::quoted(wheel.plugins, 4096) +
                        ", where the wheels 1.3.2 to 1.5.1 have their plug-ins");
    wheels.push_back(std::move(wheel));
  }
  if (!wheels.empty()) return wheels;
  return Status(Code::kUnavailable, peerlane::quoted(python, 4096) + " (" + pythonVersion +
                                        ") has no NIXL; accepted is what `" + python +
                                        " -m pip install nixl-cu12` (or nixl-cu13) installs");
}

}  // namespace peerlane
