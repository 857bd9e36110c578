// SPDX-License-Identifier: Apache-2.0
#include "peerlane/p2p/process/process_contexts.h"

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "peerlane/core/config_source.h"
#include "peerlane/core/text.h"
#include "peerlane/p2p/process/root_addresses.h"

namespace peerlane::p2p {
namespace {

// The ports of p2p-transfer.
constexpr PortRange kPorts{56800, 56900};

std::string sourceOfPorts(const Config& config) {
  const auto source = configSource("PEERLANE_PORT_RANGE");
  if (source) return source->toText();
  return "P2P_PORT_RANGE is not set, which stands for " + std::to_string(config.ports.first) + "-" +
         std::to_string(config.ports.last);
}

// A context opens the file for its GPUs only. A process that works on host memory alone would never
// report that the file is missing, so it is checked here.
Status checkTuneFile(const Config& config) {
  if (config.tuneFile.empty() || std::ifstream(config.tuneFile)) return Status::ok();
  return Status(Code::kUnavailable,
                "PEERLANE_TUNE is " + quoted(config.tuneFile) + ", which cannot be read");
}

}  // namespace

uint64_t stagingHalf(const Config& config) {
  constexpr uint64_t kLeast = 64 << 10;
  return std::max(kLeast, config.stagingBytes / 2);
}

Result<std::shared_ptr<Context>> ProcessContexts::make(OptionalGpu gpu, Use use) {
  warnOfIgnoredVariables();
  ContextOptions options;
  PEERLANE_ASSIGN(Config config, Config::fromEnvironment());
  if (!configSource("PEERLANE_PORT_RANGE")) config.ports = kPorts;
  config.portsSource = sourceOfPorts(config);
  config.networkOnly = use == Use::kNetwork;
  config.stagingBytes = stagingHalf(config);
  PEERLANE_RETURN_IF_ERROR(checkTuneFile(config));
  // Connections for links of one host begin at a Unix socket, so without the others no port is
  // needed.
  if (use == Use::kRoots && Context::allowsNetwork(config)) {
    PEERLANE_ASSIGN(options.listen, rootAddresses(config));
  }
  options.config = config;
  if (gpu) options.devices = {{DeviceKind::kCuda, *gpu}};
  PEERLANE_ASSIGN(auto made, Context::create(std::move(options)));
  return std::shared_ptr<Context>(std::move(made));
}

Result<std::shared_ptr<Context>> ProcessContexts::get(OptionalGpu gpu, Use use) {
  const MutexLock lock(mutex_);
  if (use == Use::kPlain)
    if (const auto found = contexts_.find({gpu, Use::kRoots}); found != contexts_.end())
      return found->second;
  if (const auto found = contexts_.find({gpu, use}); found != contexts_.end()) return found->second;
  PEERLANE_ASSIGN(auto made, make(gpu, use));
  contexts_.emplace(std::pair(gpu, use), made);
  return made;
}

Result<std::shared_ptr<Context>> ProcessContexts::any(OptionalGpu gpu) {
  {
    const MutexLock lock(mutex_);
    // Every context can register host memory.
    for (const auto& [key, context] : contexts_)
      if (key.first == gpu || !gpu) return context;
  }
  return get(gpu, Use::kPlain);
}

void ProcessContexts::unwarm() {
  std::vector<std::shared_ptr<Context>> unused;  // end after the lock
  const MutexLock lock(mutex_);
  for (auto at = contexts_.begin(); at != contexts_.end();) {
    if (at->second.use_count() > 1) {
      ++at;
      continue;
    }
    unused.push_back(std::move(at->second));
    at = contexts_.erase(at);
  }
}

}  // namespace peerlane::p2p
