// SPDX-License-Identifier: Apache-2.0
//
// Which RDMA device is nearest to a memory. Functions of values; thread: any.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "peerlane/core/status.h"
#include "peerlane/os/topology.h"

namespace peerlane {

// Where memory lies: on a GPU, or on a NUMA node of the host.
struct MemorySite {
  std::string gpuBusId{};  // "0000:17:00.0", in either case; empty: host memory
  int numaNode = -1;       // of host memory; -1: on several, or not known
};

struct RdmaCandidate {
  std::string name;   // as libibverbs has it
  int numaNode = -1;  // -1: not known
};
// With the node of which the kernel knows (/sys/class/infiniband).
RdmaCandidate rdmaCandidate(const std::string& name);

struct RankedRdmaDevice {
  size_t index = 0;       // among the candidates
  uint32_t distance = 0;  // only compared, with those from the same memory
  std::string reason;     // "pcie-switch/3 from cuda0"
};

// All of them, nearest first; in their own order where they are as near. A device in software has
// no place: it is near nothing and far from nothing, and comes after those that have one.
std::vector<RankedRdmaDevice> rankRdmaDevices(const TopologyReport& report,
                                              const MemorySite& memory,
                                              const std::vector<RdmaCandidate>& candidates);
// On this machine. Costs nothing where there is one device. For host memory the nodes of the
// candidates decide; for a GPU the topology is read, which takes tens of milliseconds.
// Errors: those of loadTopology().
Result<std::vector<RankedRdmaDevice>> rankRdmaDevices(const MemorySite& memory,
                                                      const std::vector<RdmaCandidate>& candidates);

}  // namespace peerlane
