// SPDX-License-Identifier: Apache-2.0
//
// Fuzz target: lines of NAME=value as an environment. A refusal names a variable; an accepted
// configuration is within the documented limits.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "peerlane/core/config.h"
#include "peerlane/core/status.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace peerlane;
  std::string_view text(reinterpret_cast<const char*>(bytes), size);
  std::map<std::string, std::string> variables;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(line.size() < text.size() ? line.size() + 1 : line.size());
    const size_t equals = line.find('=');
    if (equals != std::string_view::npos)
      variables.emplace(line.substr(0, equals), line.substr(equals + 1));
  }
  auto config = Config::fromVariables(variables);
  if (!config) {
    PEERLANE_CHECK(config.status().code() == Code::kInvalidArgument);
    PEERLANE_CHECK(config.status().message().find(" is ") != std::string_view::npos);
    return 0;
  }
  PEERLANE_CHECK(config->eagerBytes <= 4096);
  PEERLANE_CHECK(config->stagingBytes >= 65536 && config->stagingBytes <= 4ull << 30);
  PEERLANE_CHECK(config->ports.first <= config->ports.last);
  PEERLANE_CHECK(config->heartbeatInterval() <= config->peerTimeout / 2);
  PEERLANE_CHECK(config->heartbeatInterval().count() > 0);
  PEERLANE_CHECK(config->spin <= std::chrono::seconds(1));
  (void)config->interfaces.allows("eth0");
  return 0;
}
