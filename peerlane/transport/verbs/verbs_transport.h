// SPDX-License-Identifier: Apache-2.0
//
// The verbs transport: RDMA devices, through libibverbs: InfiniBand and RoCE.
#pragma once

#include <memory>

#include "peerlane/transport/transport.h"

namespace peerlane {

std::unique_ptr<Transport> makeVerbsTransport();

}  // namespace peerlane
