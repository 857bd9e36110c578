// SPDX-License-Identifier: Apache-2.0
//
// PluginFolder: the folder in which NIXL looks for plug-ins, and what this command placed there:
// libplugin_PEERLANE.so, and a folder peerlane/ with the libraries that it needs and a list of
// them. No other file is touched. External synchronization required.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "peerlane/core/status.h"
#include "tools/nixl/plugin_parts.h"

namespace peerlane {

class PluginFolder {
 public:
  explicit PluginFolder(std::string path);

  const std::string& path() const { return path_; }
  // Whether a plug-in of that name lies there, placed or not.
  bool hasPlugin() const;

  // Each file is complete before it gets its name, the plug-in last; until all are complete nothing
  // has one. So a process keeps the files that it has loaded, and a full disk changes nothing.
  // Errors: kSystem, kUnavailable, kCorrupt (the list of an earlier time was changed).
  Status place(const PluginParts& parts) const;

  struct Removed {
    size_t files = 0;          // 0: nothing was placed there
    bool folderStays = false;  // peerlane/, with files of others
  };
  Result<Removed> remove() const;

 private:
  Result<std::vector<std::string>> placedLibraries() const;
  Status writeAll(const PluginParts& parts, const std::vector<std::string>& before) const;
  std::string libraryPath(const std::string& name) const { return libraries_ + "/" + name; }

  const std::string path_;
  const std::string plugin_;
  const std::string libraries_;  // a folder
  const std::string list_;
};

}  // namespace peerlane
