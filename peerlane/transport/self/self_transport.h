// SPDX-License-Identifier: Apache-2.0
//
// The link between two contexts of one process: every address is already valid, so attach() only
// notes it. The link trusts the kernel (socket credentials) for the process identity, never the
// peer. Confined to the progress thread.
#pragma once

#include <memory>

#include "peerlane/transport/transport.h"

namespace peerlane {

std::unique_ptr<Transport> makeSelfTransport();

}  // namespace peerlane
