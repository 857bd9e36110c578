// SPDX-License-Identifier: Apache-2.0
//
// Which environment variable a setting came from: a value that cannot be used is refused by the
// name it was given under, not by that of another variable. Thread-safe as Config.
#pragma once

#include <optional>
#include <string>

namespace peerlane {

struct ConfigSource {
  std::string variable;  // PEERLANE_IF_IP, or P2P_IF_IP that is read in its place
  std::string value;

  // P2P_IF_IP is "10.9.9.9"
  std::string toText() const;
};

// The variable that sets `name`, which is one of docs/configuration.md. Empty: no variable sets it,
// it has its default.
std::optional<ConfigSource> configSource(const char* name);

}  // namespace peerlane
