// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/all_transports.h"

#ifdef PEERLANE_HAS_CUDA
#include "peerlane/transport/cuda_ipc/cuda_ipc_transport.h"
#endif
#include "peerlane/transport/self/self_transport.h"
#include "peerlane/transport/shm/shm_transport.h"
#include "peerlane/transport/tcp/tcp_transport.h"

namespace peerlane {

std::vector<std::unique_ptr<Transport>> makeAllTransports([[maybe_unused]] const cuda::Gpus& gpus) {
  std::vector<std::unique_ptr<Transport>> transports;
  transports.push_back(makeSelfTransport());
  transports.push_back(makeShmTransport());
  transports.push_back(makeTcpTransport());
#ifdef PEERLANE_HAS_CUDA
  if (!gpus.empty()) transports.push_back(makeCudaIpcTransport(gpus));
#endif
  return transports;
}

}  // namespace peerlane
