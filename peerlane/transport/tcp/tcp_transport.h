// SPDX-License-Identifier: Apache-2.0
//
// The tcp transport: links over a TCP connection of their own, for peers that share nothing but a
// network. The side that dialled the control connection dials this one, too.
#pragma once

#include <memory>

#include "peerlane/transport/transport.h"

namespace peerlane {

std::unique_ptr<Transport> makeTcpTransport();

}  // namespace peerlane
