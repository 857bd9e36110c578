// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/verbs/device_distance.h"

#include <strings.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <utility>

namespace peerlane {
namespace {

// Of a device that the report has no place for, behind all that have one.
constexpr auto kPlaceless = static_cast<PathKind>(static_cast<int>(PathKind::kSystem) + 1);

std::optional<size_t> findMemory(const TopologyReport& report, const MemorySite& memory) {
  for (size_t i = 0; i < report.devices.size(); ++i) {
    const TopologyDevice& device = report.devices[i];
    const bool isIt = memory.gpuBusId.empty()
                          ? device.kind == TopologyDeviceKind::kHostMemory &&
                                memory.numaNode >= 0 && device.numaNode == memory.numaNode
                          : ::strcasecmp(device.busId.c_str(), memory.gpuBusId.c_str()) == 0;
    if (isIt) return i;
  }
  return std::nullopt;
}

std::optional<size_t> findNic(const TopologyReport& report, const std::string& name) {
  for (size_t i = 0; i < report.devices.size(); ++i) {
    // A device in software that hangs on no bus has no place, whatever the system says of it.
    if (report.devices[i].busId.empty()) continue;
    for (const RdmaFunction& rdma : report.devices[i].rdma)
      if (rdma.name == name) return i;
  }
  return std::nullopt;
}

// Of two paths of one kind the one of fewer hops is shorter.
uint32_t lengthOf(PathKind kind, uint32_t hops) {
  return static_cast<uint32_t>(kind) << 16 | std::min<uint32_t>(hops, 0xffff);
}

RankedRdmaDevice rank(const TopologyReport& report, size_t memory, size_t index,
                      const RdmaCandidate& candidate) {
  const TopologyDevice& from = report.devices[memory];
  if (const auto nic = findNic(report, candidate.name)) {
    const DevicePath path = report.path(memory, *nic);
    return {index, lengthOf(path.kind, path.hops),
            std::string(pathKindName(path.kind)) + "/" + std::to_string(path.hops) + " from " +
                from.name};
  }
  if (candidate.numaNode < 0 || from.numaNode < 0)
    return {index, lengthOf(kPlaceless, 0), "no known place"};
  // Of the PCI path only its end is known: behind those of that kind that are known better.
  const bool isSame = candidate.numaNode == from.numaNode;
  const PathKind kind = isSame ? PathKind::kNumaNode : PathKind::kSystem;
  return {index, lengthOf(kind, ~0u),
          std::string(pathKindName(kind)) + " from " + from.name + " (node" +
              std::to_string(candidate.numaNode) + ")"};
}

std::vector<RankedRdmaDevice> inOwnOrder(size_t count, const std::string& reason) {
  std::vector<RankedRdmaDevice> devices;
  for (size_t i = 0; i < count; ++i) devices.push_back({i, 0, reason});
  return devices;
}

}  // namespace

RdmaCandidate rdmaCandidate(const std::string& name) {
  std::ifstream file("/sys/class/infiniband/" + name + "/device/numa_node");
  int node = -1;
  return {name, file >> node ? node : -1};
}

std::vector<RankedRdmaDevice> rankRdmaDevices(const TopologyReport& report,
                                              const MemorySite& memory,
                                              const std::vector<RdmaCandidate>& candidates) {
  const auto place = findMemory(report, memory);
  if (!place) return inOwnOrder(candidates.size(), "the place of the memory is not known");
  std::vector<RankedRdmaDevice> ranked;
  for (size_t i = 0; i < candidates.size(); ++i)
    ranked.push_back(rank(report, *place, i, candidates[i]));
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const auto& a, const auto& b) { return a.distance < b.distance; });
  return ranked;
}

Result<std::vector<RankedRdmaDevice>> rankRdmaDevices(
    const MemorySite& memory, const std::vector<RdmaCandidate>& candidates) {
  if (candidates.size() < 2) return inOwnOrder(candidates.size(), "the only one");
  TopologyReport report;
  if (memory.gpuBusId.empty()) {
    TopologyDevice& node = report.devices.emplace_back();
    node.name = "node" + std::to_string(memory.numaNode);
    node.numaNode = memory.numaNode;
  } else {
    PEERLANE_ASSIGN(report, loadTopology());
  }
  return rankRdmaDevices(report, memory, candidates);
}

}  // namespace peerlane
