// SPDX-License-Identifier: Apache-2.0
//
// Every transport of this build, best first. The only file that names them.
#pragma once

#include <memory>
#include <vector>

#include "peerlane/os/cuda.h"
#include "peerlane/transport/transport.h"

namespace peerlane {

// `gpus`: of the context that asks.
std::vector<std::unique_ptr<Transport>> makeAllTransports(const cuda::Gpus& gpus);

}  // namespace peerlane
