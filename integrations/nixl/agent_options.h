// SPDX-License-Identifier: Apache-2.0
//
// The options of an agent's back end, by name, as create_backend() gives them. Everything else
// comes from the environment (docs/configuration.md). Plain value.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "integrations/nixl/nixl_abi.h"
#include "peerlane/core/status.h"

namespace peerlane::nixl {

struct AgentOptions {
  std::vector<std::string> listen{};  // as ContextOptions::listen; empty: agents of this host only
  std::chrono::milliseconds connectTimeout{5000};
  // How long deregister_memory() may wait for transfers to end.
  std::chrono::milliseconds drainTimeout{10000};
  uint32_t copyThreads = 0;  // as ContextOptions::copyThreads, for host memory

  // The names with their default values, for get_plugin_params().
  static abi::Params defaults();
  // kInvalidArgument naming the option, its value and what is accepted.
  static Result<AgentOptions> read(const abi::Params& params);
};

}  // namespace peerlane::nixl
