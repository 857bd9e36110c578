// SPDX-License-Identifier: Apache-2.0
//
// The list of transports of this process: each context makes those of each entry when it starts.
// The library's own are added by all_transports; further ones are added in the same way.
// Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "peerlane/os/cuda.h"
#include "peerlane/transport/transport.h"

namespace peerlane {

using Transports = std::vector<std::unique_ptr<Transport>>;

struct TransportEntry {
  std::string name;  // of the family
  int place = 0;     // in the order of preference: lower ones come before higher ones
  LinkScope scope = LinkScope::kHost;
  // `gpus`: of the context that asks. Best first; none: it has no use for one.
  std::function<Transports(const Config& config, const cuda::Gpus& gpus)> make;
};

// Contexts that are made from now on have it. Requires: no entry has its name.
void addTransport(TransportEntry entry);
// Contexts that are made from now on do not have it.
void removeTransport(const std::string& name);

// All entries, best first.
std::vector<TransportEntry> transportEntries();

}  // namespace peerlane
