// SPDX-License-Identifier: Apache-2.0
//
// The verbs transport: RDMA devices, through libibverbs: InfiniBand and RoCE.
#pragma once

#include <memory>

#include "peerlane/os/cuda.h"
#include "peerlane/transport/transport.h"

namespace peerlane {

// Of several devices the one nearest to the first of `gpus` is taken, or to host memory.
std::unique_ptr<Transport> makeVerbsTransport(const cuda::Gpus& gpus = {});

}  // namespace peerlane
