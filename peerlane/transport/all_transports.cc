// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/all_transports.h"

#include <algorithm>
#include <string>
#include <utility>

#ifdef PEERLANE_HAS_CUDA
#include "peerlane/transport/cuda_ipc/cuda_ipc_transport.h"
#endif
#include "peerlane/transport/self/self_transport.h"
#include "peerlane/transport/shm/shm_transport.h"
#include "peerlane/transport/tcp/tcp_transport.h"
#include "peerlane/transport/transport_list.h"
#include "peerlane/transport/verbs/verbs_transport.h"

namespace peerlane {
namespace {

Transports one(std::unique_ptr<Transport> transport) {
  Transports transports;
  transports.push_back(std::move(transport));
  return transports;
}

Transports cudaIpc([[maybe_unused]] const cuda::Gpus& gpus) {
#ifdef PEERLANE_HAS_CUDA
  if (!gpus.empty()) return one(makeCudaIpcTransport(gpus));
#endif
  return {};
}

// Places are far apart, so that others find room between them.
void addAll() {
  addTransport({"self", 100, LinkScope::kProcess,
                [](const auto&, const auto&) { return one(makeSelfTransport()); }});
  addTransport({"shm", 200, LinkScope::kHost,
                [](const auto&, const auto&) { return one(makeShmTransport()); }});
  addTransport({"cuda_ipc", 300, LinkScope::kHost,
                [](const auto&, const cuda::Gpus& gpus) { return cudaIpc(gpus); }});
  addTransport(
      {"verbs", 350, LinkScope::kNetwork, [](const Config& config, const cuda::Gpus& gpus) {
         return makeVerbsTransports(config, gpus);
       }});
  addTransport({"tcp", 400, LinkScope::kNetwork,
                [](const auto&, const auto&) { return one(makeTcpTransport()); }});
}

std::vector<TransportEntry> allEntries() {
  static const bool isAdded = (addAll(), true);
  (void)isAdded;
  return transportEntries();
}

}  // namespace

Result<std::vector<std::unique_ptr<Transport>>> makeAllTransports(const Config& config,
                                                                  const cuda::Gpus& gpus) {
  const std::vector<TransportEntry> entries = allEntries();
  for (const std::string& link : config.links) {
    if (std::any_of(entries.begin(), entries.end(),
                    [&](const TransportEntry& entry) { return entry.name == link; }))
      continue;
    std::string names;
    for (const TransportEntry& entry : entries) names += (names.empty() ? "" : ", ") + entry.name;
    return Status(Code::kInvalidArgument, "PEERLANE_LINKS (Config::links) names '" + link +
                                              "', which is no link; accepted are " + names);
  }
  Transports transports;
  for (const TransportEntry& entry : entries)
    for (auto& made : entry.make(config, gpus)) transports.push_back(std::move(made));
  return transports;
}

bool allowsNetwork(const Config& config) {
  const std::vector<TransportEntry> entries = allEntries();
  return std::any_of(entries.begin(), entries.end(), [&](const TransportEntry& entry) {
    return entry.scope == LinkScope::kNetwork && config.allowsLink(entry.name);
  });
}

}  // namespace peerlane
