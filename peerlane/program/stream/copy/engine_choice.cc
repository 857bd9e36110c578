// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/stream/copy/engine_choice.h"

#include <array>
#include <fstream>
#include <utility>

#include "peerlane/core/text.h"

namespace peerlane::stream {
namespace {

using Field = std::pair<const char*, uint64_t EngineChoice::*>;
constexpr std::array<Field, 5> kFields{{{"inline", &EngineChoice::inlineBytes},
                                        {"ce_put", &EngineChoice::cePutBytes},
                                        {"ce_put_queued", &EngineChoice::ceQueuedPutBytes},
                                        {"ce_get", &EngineChoice::ceGetBytes},
                                        {"ce_block", &EngineChoice::ceBlockBytes}}};

std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

Status readLine(const std::string& line, EngineChoice& choice) {
  const size_t equals = line.find('=');
  if (equals == std::string::npos)
    return Status(Code::kInvalidArgument, "'" + line + "' is not \"name = bytes\"");
  const std::string name = trimmed(line.substr(0, equals));
  const std::string value = trimmed(line.substr(equals + 1));
  for (const auto& [known, field] : kFields) {
    if (name != known) continue;
    const auto bytes = parseByteSize(value);
    if (!bytes)
      return Status(Code::kInvalidArgument, name + " = '" + value + "' is not a size (64K, 1M)");
    choice.*field = *bytes;
    return Status::ok();
  }
  return Status(
      Code::kInvalidArgument,
      "'" + name + "' is not known; there are inline, ce_put, ce_put_queued, ce_get, ce_block");
}

}  // namespace

std::string EngineChoice::toString() const {
  std::string text = source + ":";
  for (const auto& [name, field] : kFields)
    text += std::string(" ") + name + " " + formatByteSize(this->*field);
  return text;
}

Result<EngineChoice> EngineChoice::load(const std::string& path) {
  EngineChoice choice;
  if (path.empty()) return choice;
  std::ifstream file(path);
  if (!file) return Status(Code::kUnavailable, "PEERLANE_TUNE: '" + path + "' cannot be read");
  choice.source = path;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    line = trimmed(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    PEERLANE_RETURN_IF_ERROR(
        readLine(line, choice)
            .withContext("PEERLANE_TUNE: " + path + " line " + std::to_string(number)));
  }
  return choice;
}

}  // namespace peerlane::stream
