// SPDX-License-Identifier: Apache-2.0
//
// The link between GPUs of one host, of two processes or of one: GPU memory of the peer is mapped,
// and the programs' own loads, stores and copies are the transfer (over NVLink or PCIe, as the
// hardware has it). It stands beside the link that carries host memory and words. Confined to the
// progress thread.
#pragma once

#include <memory>

#include "peerlane/os/cuda.h"
#include "peerlane/transport/transport.h"

namespace peerlane {

std::unique_ptr<Transport> makeCudaIpcTransport(cuda::Gpus gpus);

}  // namespace peerlane
