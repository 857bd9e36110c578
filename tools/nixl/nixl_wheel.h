// SPDX-License-Identifier: Apache-2.0
//
// NixlWheel: a NIXL that was installed into a Python, as the wheels nixl-cu12 and nixl-cu13 lay it
// out. Plain value.
#pragma once

#include <string>
#include <vector>

#include "peerlane/core/status.h"

namespace peerlane {

struct NixlWheel {
  std::string python;   // the program, as the user named it
  std::string module;   // nixl_cu12 or nixl_cu13
  std::string version;  // "1.5.1"
  std::string plugins;  // the folder in which its agents look for plug-ins

  // "nixl_cu12 1.5.1"
  std::string name() const { return module + " " + version; }
};

// All that this Python would import, at least one. Errors: kInvalidArgument (`python` is empty),
// kUnavailable (no such program, no Python, no NIXL in it), kNotSupported (NIXL without the folder
// of the wheels), kTimeout.
Result<std::vector<NixlWheel>> findNixlWheels(const std::string& python);

}  // namespace peerlane
