// SPDX-License-Identifier: Apache-2.0
#include "integrations/nixl/agent_options.h"

#include <algorithm>
#include <utility>

namespace peerlane::nixl {
namespace {

constexpr const char* kListen = "listen";
constexpr const char* kConnectTimeout = "connect_timeout_ms";
constexpr const char* kDrainTimeout = "drain_timeout_ms";
constexpr const char* kCopyThreads = "copy_threads";

std::vector<std::string> addressesIn(const std::string& text) {
  std::vector<std::string> addresses;
  for (size_t at = 0; at < text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    if (comma > at) addresses.push_back(text.substr(at, comma - at));
    at = comma + 1;
  }
  return addresses;
}

bool isNumber(const std::string& value, size_t mostDigits) {
  return !value.empty() && value.size() <= mostDigits &&
         value.find_first_not_of("0123456789") == std::string::npos;
}

// A number that is too large for contexts is refused by them.
Status readThreads(const std::string& name, const std::string& value, uint32_t& out) {
  if (!isNumber(value, 4))
    return Status(Code::kInvalidArgument, "the option " + name + " is \"" + value +
                                              "\"; accepted are numbers from 0 to 64");
  out = static_cast<uint32_t>(std::stoul(value));
  return Status::ok();
}

Status readTimeout(const std::string& name, const std::string& value,
                   std::chrono::milliseconds& out) {
  if (!isNumber(value, 8) || std::stol(value) == 0)
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
          {kDrainTimeout, std::to_string(options.drainTimeout.count())},
          {kCopyThreads, std::to_string(options.copyThreads)}};
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
    } else if (name == kCopyThreads) {
      PEERLANE_RETURN_IF_ERROR(readThreads(name, value, options.copyThreads));
    } else {
      return Status(Code::kInvalidArgument,
                    "\"" + name + "\" is no option of this back end; accepted are " + kListen +
                        ", " + kConnectTimeout + ", " + kDrainTimeout + ", " + kCopyThreads);
    }
  }
  return options;
}

}  // namespace peerlane::nixl
