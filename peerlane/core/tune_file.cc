// SPDX-License-Identifier: Apache-2.0
#include "peerlane/core/tune_file.h"

#include <algorithm>
#include <array>
#include <fstream>

#include "peerlane/core/device_code.h"
#include "peerlane/core/text.h"

namespace peerlane {
namespace {

// Engines of GPUs (program/stream/copy/engine_choice.h), then copies of hosts
// (program/cpu/host_copy.h).
constexpr std::array<std::string_view, 9> kNames{"inline",         "ce_put",     "ce_put_queued",
                                                 "ce_get",         "ce_block",   "copy_memcpy",
                                                 "copy_streaming", "copy_movsb", "copy_process_vm"};

bool isKnown(std::string_view name) {
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

std::string allNames() {
  std::string text;
  for (const std::string_view name : kNames) text += (text.empty() ? "" : ", ") + std::string(name);
  return text;
}

std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

Status readLine(const std::string& line, std::map<std::string, uint64_t, std::less<>>& values) {
  const size_t equals = line.find('=');
  if (equals == std::string::npos)
    return Status(Code::kInvalidArgument, "'" + line + "' is not \"name = bytes\"");
  const std::string name = trimmed(line.substr(0, equals));
  const std::string value = trimmed(line.substr(equals + 1));
  if (!isKnown(name))
    return Status(Code::kInvalidArgument, "'" + name + "' is not known; there are " + allNames());
  const auto bytes = parseByteSize(value);
  if (!bytes)
    return Status(Code::kInvalidArgument, name + " = '" + value + "' is not a size (64K, 1M)");
  values[name] = *bytes;
  return Status::ok();
}

}  // namespace

Result<TuneFile> TuneFile::load(const std::string& path) {
  TuneFile read;
  if (path.empty()) return read;
  std::ifstream file(path);
  if (!file) return Status(Code::kUnavailable, "PEERLANE_TUNE: '" + path + "' cannot be read");
  read.source_ = path;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    line = trimmed(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    PEERLANE_RETURN_IF_ERROR(
        readLine(line, read.values_)
            .withContext("PEERLANE_TUNE: " + path + " line " + std::to_string(number)));
  }
  return read;
}

uint64_t TuneFile::get(std::string_view name, uint64_t otherwise) const {
  PEERLANE_CHECK(isKnown(name));
  const auto found = values_.find(name);
  return found == values_.end() ? otherwise : found->second;
}

}  // namespace peerlane
