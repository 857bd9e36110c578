// SPDX-License-Identifier: Apache-2.0
//
// OutputFile: a file that appears under its name complete or not at all. Until commit() it has no
// name at all where the file system can do that (then nothing is left even by a killed process),
// else a hidden one in the same folder. External synchronization required.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "peerlane/core/status.h"
#include "tools/report/ending_signals.h"

namespace peerlane {

class OutputFile {
 public:
  enum class Existing { kRefuse, kReplace };
  enum class Naming { kUnnamedIfPossible, kHidden };

  // Errors: kInvalidArgument (`path` is a folder, a pipe or a device, or has no file name),
  // kUnavailable (it exists already), kSystem.
  static Result<std::unique_ptr<OutputFile>> create(const std::string& path, Existing existing,
                                                    Naming naming = Naming::kUnnamedIfPossible);
  // Drops everything that was not committed.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  const std::string& path() const { return path_; }
  // Claims space, so that a full disk is known before anything moves. OK also where a file system
  // cannot.
  Status reserve(uint64_t bytes);
  Status append(std::span<const std::byte> content);
  // Cuts off reserved space that was not used, brings everything to the disk and gives the file its
  // name. kUnavailable: meanwhile somebody else made a file of that name.
  Status commit();

 private:
  OutputFile(std::string path, Existing existing);
  Status openUnnamed();
  Status openHidden();
  Status nameAs(const std::string& name);

  const std::string path_;
  const std::string folder_;
  const Existing existing_;
  std::string hidden_;  // the name to remove; empty: there is none
  RemovedAtSignals unfinished_;
  int fd_ = -1;
  uint64_t written_ = 0;
};

// The last component of a name that came from outside, fit for a file here: no folders, no control
// characters, neither "." nor "..", not hidden by accident, at most 255 bytes. "received" when
// nothing is left of it.
std::string safeFileName(const std::string& name);
// A name for one line of a message: as it is, or quoted and escaped where it has control
// characters.
std::string shownName(const std::string& name);

}  // namespace peerlane
