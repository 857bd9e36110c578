// SPDX-License-Identifier: Apache-2.0
//
// PluginParts: libplugin_PEERLANE.so as it came with this program, and the shared libraries that go
// with it into another folder. Plain value.
#pragma once

#include <string>
#include <vector>

#include "peerlane/core/status.h"

namespace peerlane {

inline constexpr const char* kPluginFile = "libplugin_PEERLANE.so";

struct PluginParts {
  struct Library {
    std::string name;  // by which it is asked for
    std::string path;  // of the file that the dynamic loader takes
  };
  std::string plugin;  // its path
  // Sorted by name. Without glibc and the runtime of the compiler: those are the machine's own, and
  // NIXL has loaded them before.
  std::vector<Library> libraries;

  // `plugin`: its path; empty: as it lies in ../lib/nixl (build folder, bundle) or
  // ../lib/peerlane/nixl (installed), from the folder of this program. Errors: kUnavailable (no
  // such file, a library that it needs is missing), kInvalidArgument (no shared object).
  static Result<PluginParts> find(const std::string& plugin);
};

}  // namespace peerlane
