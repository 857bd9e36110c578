// SPDX-License-Identifier: Apache-2.0
//
// The link between GPUs of one host, of two processes or of one: it maps GPU memory of the peer,
// and loads, stores and copies of the importing process are the transfer (over NVLink or PCIe, as
// the hardware has it). A peer uses it in addition to the host link, which carries host memory and
// words. Confined to the progress thread.
#pragma once

#include <memory>

#include "peerlane/os/cuda.h"
#include "peerlane/transport/transport.h"

namespace peerlane {

std::unique_ptr<Transport> makeCudaIpcTransport(cuda::Gpus gpus);

}  // namespace peerlane
