// SPDX-License-Identifier: Apache-2.0
//
// Every transport of this build, best first. The only file that names them.
#pragma once

#include <memory>
#include <vector>

#include "peerlane/core/config.h"
#include "peerlane/core/status.h"
#include "peerlane/os/cuda.h"
#include "peerlane/transport/transport.h"

namespace peerlane {

// `gpus`: of the context that asks. Errors: kInvalidArgument (Config::links names one that there is
// not).
Result<std::vector<std::unique_ptr<Transport>>> makeAllTransports(const Config& config,
                                                                  const cuda::Gpus& gpus);

// The settings allow a link to other hosts.
bool allowsNetwork(const Config& config);

}  // namespace peerlane
