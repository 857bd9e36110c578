// SPDX-License-Identifier: Apache-2.0
//
// The link between two processes of one host. Three engines, chosen per region: *mapped* (memory
// behind a descriptor: plain loads and stores), *cma* (any private memory, one copy by
// process_vm_*), *ring* (staged through a shared ring, when the system forbids cma). Words in
// mapped memory are always loads and stores. Confined to the progress thread.
#pragma once

#include <memory>

#include "peerlane/transport/transport.h"

namespace peerlane {

std::unique_ptr<Transport> makeShmTransport();

}  // namespace peerlane
