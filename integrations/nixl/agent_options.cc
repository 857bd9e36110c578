// SPDX-License-Identifier: Apache-2.0
#include "integrations/nixl/agent_options.h"

#include <algorithm>
#include <utility>

namespace peerlane::nixl {
namespace {

constexpr const char* kListen = "listen";
constexpr const char* kConnectTimeout = "connect_timeout_ms";
constexpr const char* kDrainTimeout = "drain_timeout_ms";

std::vector<std::string> addressesIn(const std::string& text) {
  std::vector<std::string> addresses;
  for (size_t at = 0; at < text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    if (comma > at) addresses.push_back(text.substr(at, comma - at));
    at = comma + 1;
  }
  return addresses;
}

Status readTimeout(const std::string& name, const std::string& value,
                   std::chrono::milliseconds& out) {
  const bool digits = !value.empty() && value.size() <= 8 &&
                      value.find_first_not_of("0123456789") == std::string::npos;
  if (!digits || std::stol(value) == 0)
    return Status(Code::kInvalidArgument, "the option " + name + " is \"" + value +
                                              "\"; accepted are milliseconds from 1 to 99999999");
  out = std::chrono::milliseconds(std::stol(value));
  return Status::ok();
}

}  // namespace

abi::Params AgentOptions::defaults() {
  const AgentOptions options;
  return {{kListen, ""},
          {kConnectTimeout, std::to_string(options.connectTimeout.count())},
          {kDrainTimeout, std::to_string(options.drainTimeout.count())}};
}

Result<AgentOptions> AgentOptions::read(const abi::Params& params) {
  AgentOptions options;
  for (const auto& [name, value] : params) {
    if (name == kListen) {
      options.listen = addressesIn(value);
    } else if (name == kConnectTimeout) {
      PEERLANE_RETURN_IF_ERROR(readTimeout(name, value, options.connectTimeout));
    } else if (name == kDrainTimeout) {
      PEERLANE_RETURN_IF_ERROR(readTimeout(name, value, options.drainTimeout));
    } else {
      return Status(Code::kInvalidArgument,
                    "\"" + name + "\" is no option of this back end; accepted are " + kListen +
                        ", " + kConnectTimeout + ", " + kDrainTimeout);
    }
  }
  return options;
}

}  // namespace peerlane::nixl
