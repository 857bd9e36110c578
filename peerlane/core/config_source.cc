// SPDX-License-Identifier: Apache-2.0
#include "peerlane/core/config_source.h"

#include <cstdlib>
#include <string_view>

#include "peerlane/core/config_table.h"
#include "peerlane/core/text.h"

namespace peerlane {
namespace {

std::optional<ConfigSource> valueOf(const char* variable) {
  const char* const value = std::getenv(variable);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return ConfigSource{variable, value};
}

}  // namespace

std::string ConfigSource::toText() const {
  return variable + " is " + quoted(value);
}

std::optional<ConfigSource> configSource(const char* name) {
  for (const internal::ConfigRow& row : internal::configTable()) {
    if (row.name != std::string_view(name)) continue;
    if (auto own = valueOf(row.name)) return own;
    for (const char* const other : row.alsoRead)
      if (auto found = valueOf(other)) return found;
  }
  return std::nullopt;
}

}  // namespace peerlane
