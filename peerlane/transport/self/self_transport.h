// SPDX-License-Identifier: Apache-2.0
//
// The link between two contexts of one process: every address is already valid, so attaching is
// noting it. The process identity is the kernel's word (socket credentials), never the peer's.
// Confined to the progress thread.
#pragma once

#include <memory>

#include "peerlane/transport/transport.h"

namespace peerlane {

std::unique_ptr<Transport> makeSelfTransport();

}  // namespace peerlane
