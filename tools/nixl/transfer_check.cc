// SPDX-License-Identifier: Apache-2.0
#include "tools/nixl/transfer_check.h"

#include <sstream>

#include "peerlane/core/text.h"
#include "tools/nixl/python_answer.h"

namespace peerlane {
namespace {

constexpr const char* kBackend = "PEERLANE";
constexpr const char* kLogOfPlugin = "peerlane nixl: ";

// "E1125 14:51:52.262195 16262 file.cpp:113] sentence": the sentence.
std::string withoutOrigin(const std::string& line) {
  const size_t end = line.find("] ");
  const bool hasOrigin = end != std::string::npos && line.find(".cpp:") < end;
  return hasOrigin ? line.substr(end + 2) : line;
}

// Why NIXL did not take our plug-in, or else the last that the plug-in itself said. Empty: neither
// said anything.
std::string loggedReason(const ProgramEnd& end) {
  std::istringstream lines(end.errors);
  std::string ofPlugin;
  for (std::string line; std::getline(lines, line);) {
    const auto has = [&line](const char* word) { return line.find(word) != std::string::npos; };
    if (has("libplugin_PEERLANE.so") && (has("Failed") || has("mismatch")))
      return withoutOrigin(line);
    if (line.starts_with(kLogOfPlugin)) ofPlugin = line;
  }
  return ofPlugin;
}

std::string adviceFor(const std::string& step, const std::string& logged, const NixlWheel& wheel) {
  if (step.starts_with("import"))
    return "`" + wheel.python + " -m pip install` of what is missing helps";
  if (step == "load" && !logged.starts_with(kLogOfPlugin))
    return "`peerlane nixl install --python " + wheel.python + "` places it again";
  return "`peerlane doctor` shows what works on this machine";
}

Status failureIn(const PythonAnswer& answer, const NixlWheel& wheel) {
  const auto steps = answer.rows("step");
  const std::string step = steps.empty() ? "start" : steps.back().front();
  const auto failures = answer.rows("failed");
  std::string why = answer.end().failure;
  for (const PythonAnswer::Cells& cells : failures)
    why += (why.empty() ? "" : "; ") + cells.front();
  std::string text = wheel.name() + ", step \"" + step + "\": " + why;
  std::string logged = loggedReason(answer.end());
  if (logged.empty() && failures.empty()) logged = answer.end().lastError();
  if (!logged.empty()) text += "; logged: " + peerlane::quoted(logged, 1500);
  return Status(Code::kUnavailable, text + "; " + adviceFor(step, logged, wheel));
}

}  // namespace

Result<TransferReport> tryTransfer(const NixlWheel& wheel) {
  PEERLANE_ASSIGN(const PythonAnswer answer,
                  PythonAnswer::ask(wheel.python, kTryTransfer, {wheel.module}));
  const std::string wrong = answer.cell("wrong");
  if (wrong.empty() || !answer.rows("failed").empty() || !answer.end().failure.empty())
    return failureIn(answer, wheel);
  if (wrong != "0")
    return Status(Code::kCorrupt, wheel.name() + ": " + peerlane::quoted(wrong) +
                                      " bytes did not arrive as they were sent; report this");
  if (answer.cell("backend") != kBackend)
    return Status(Code::kUnavailable, wheel.name() + ": the back end " +
                                          peerlane::quoted(answer.cell("backend")) + " carried it");
  return TransferReport{.version = answer.cell("peerlane"), .route = answer.cell("route")};
}

}  // namespace peerlane
