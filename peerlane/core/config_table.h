// SPDX-License-Identifier: Apache-2.0
//
// The rows that config.h reads by: one per environment variable. Private to core/config. Immutable
// after creation.
#pragma once

#include <string_view>
#include <vector>

#include "peerlane/core/config.h"
#include "peerlane/core/status.h"

namespace peerlane::internal {

struct ConfigRow {
  const char* name;
  std::vector<const char*>
      alsoRead;  // other projects' names, honoured in this order when ours is not set
  const char* type;
  const char* byDefault;
  const char* accepted;
  const char* text;
  // Reads the value into its field. On failure the field is as before; the caller makes the message
  // from `accepted`.
  bool (*read)(std::string_view text, Config& config);
  bool secret = false;
};

const std::vector<ConfigRow>& configTable();

}  // namespace peerlane::internal
