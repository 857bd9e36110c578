// SPDX-License-Identifier: Apache-2.0
//
// The verbs transports: RDMA devices, through libibverbs: InfiniBand and RoCE. One for each device
// that the context uses (verbs_rails.h): "verbs", "verbs.2", "verbs.3", ... Links of one number are
// joined with each other.
#pragma once

#include <memory>
#include <vector>

#include "peerlane/core/config.h"
#include "peerlane/os/cuda.h"
#include "peerlane/transport/transport.h"
#include "peerlane/transport/verbs/verbs_rails.h"

namespace peerlane {

// `rank`: how far devices are from memory.
std::vector<std::unique_ptr<Transport>> makeVerbsTransports(const Config& config,
                                                            const cuda::Gpus& gpus = {},
                                                            RankRdma rank = rankHere());

}  // namespace peerlane
