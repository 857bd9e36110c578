// SPDX-License-Identifier: Apache-2.0
//
// The parts of a machine and how far its devices are from each other: NUMA nodes, NICs, GPUs and
// the PCI paths between them, of this machine or of one recorded in an hwloc XML file. A report is
// a value; the tools render it. Reading takes tens of milliseconds. Thread: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "peerlane/core/status.h"

namespace peerlane {

struct NumaNode {
  unsigned osIndex = 0;
  uint64_t bytes = 0;
  std::string cpus;  // the kernel's list form, e.g. "0-3,8"; empty for a node without processors
};

enum class TopologyDeviceKind : uint8_t { kHostMemory, kNic, kGpu };

// A NIC as libibverbs sees it.
struct RdmaFunction {
  std::string name;                // "mlx5_0"
  std::vector<std::string> ports;  // their states from port 1 on: "active", "down", ...
};

struct TopologyDevice {
  TopologyDeviceKind kind = TopologyDeviceKind::kHostMemory;
  // "node0", "eth0", "cuda0"; the bus id when the system has no other name for it.
  std::string name;
  // Other names of the same hardware, e.g. the RDMA device "mlx5_0" of the interface "eth0".
  std::vector<std::string> aliases;
  std::vector<RdmaFunction> rdma;  // also among the names
  std::string busId;  // "0000:17:00.0"; empty for host memory and devices that are not on PCI
  std::string model;  // as the PCI database says; may be empty
  int numaNode = -1;  // os index; -1 when it belongs to several or to none
};

// How two devices reach each other, nearest first.
enum class PathKind : uint8_t {
  kSame,            // one device
  kPcieSwitch,      // below a common PCIe bridge or switch
  kPcieHostBridge,  // below one host bridge (root complex)
  kNumaNode,        // through the processor of one NUMA node, or of a few that both are near to
  kSystem,          // across NUMA nodes
};

// "same", "pcie-switch", "pcie-host-bridge", "numa-node", "system".
const char* pathKindName(PathKind kind);

struct DevicePath {
  PathKind kind = PathKind::kSame;
  // PCI bridges on the way, the common one counted once, plus one for the step between NUMA nodes.
  unsigned hops = 0;
};

struct TopologyReport {
  std::string source;  // "this machine" or the file's path
  unsigned packages = 0;
  unsigned cores = 0;
  unsigned processors = 0;  // hardware threads
  std::vector<NumaNode> numaNodes;
  // Relative latencies row by row in the order of numaNodes (10 is local); empty when the machine
  // does not report them.
  std::vector<uint64_t> numaLatencies;
  // Host memory of every NUMA node, then NICs, then GPUs, each by bus id.
  std::vector<TopologyDevice> devices;
  std::vector<DevicePath> paths;  // row by row in the order of devices

  // Requires: both are indices of devices.
  const DevicePath& path(size_t from, size_t to) const { return paths[from * devices.size() + to]; }
};

// This machine, as far as this process may see it. No driver is initialised for that.
Result<TopologyReport> loadTopology();
// "active" for 4, the number that the kernel and verbs have for it.
const char* rdmaPortStateName(int state);

// A file written by recordTopology or by lstopo (hwloc 2). Errors: kUnavailable or
// kPermissionDenied (the file), kInvalidArgument (not an hwloc XML).
Result<TopologyReport> loadTopologyFile(const std::string& path);
// This machine as hwloc XML, to be looked at elsewhere.
Result<std::string> recordTopology();

}  // namespace peerlane
