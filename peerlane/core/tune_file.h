// SPDX-License-Identifier: Apache-2.0
//
// TuneFile: the file that PEERLANE_TUNE names: thresholds of one machine, as `peerlane bench
// --tune` measured them, in lines "name = bytes" (# begins a comment). Those who choose by a
// threshold ask for it by name and have a figure of their own where the file says nothing. A value.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "peerlane/core/status.h"

namespace peerlane {

class TuneFile {
 public:
  // An empty path gives a file without lines. Errors: kUnavailable (the file), kInvalidArgument
  // naming the line: a name that nobody asks for, a value that is not a size.
  static Result<TuneFile> load(const std::string& path);

  // Requires: `name` is one of those that load() accepts.
  uint64_t get(std::string_view name, uint64_t otherwise) const;
  bool has(std::string_view name) const { return values_.find(name) != values_.end(); }
  // "built in", or the path.
  const std::string& source() const { return source_; }

 private:
  std::string source_ = "built in";
  std::map<std::string, uint64_t, std::less<>> values_;
};

}  // namespace peerlane
