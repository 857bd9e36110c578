// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/all_transports.h"

#include "peerlane/transport/self/self_transport.h"
#include "peerlane/transport/shm/shm_transport.h"
#include "peerlane/transport/tcp/tcp_transport.h"

namespace peerlane {

std::vector<std::unique_ptr<Transport>> makeAllTransports() {
  std::vector<std::unique_ptr<Transport>> transports;
  transports.push_back(makeSelfTransport());
  transports.push_back(makeShmTransport());
  transports.push_back(makeTcpTransport());
  return transports;
}

}  // namespace peerlane
