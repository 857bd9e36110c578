// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/topology.h"

#include <hwloc.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <utility>

#include "peerlane/os/file.h"

namespace peerlane {
namespace {

struct DestroyTopology {
  void operator()(hwloc_topology* topology) const { hwloc_topology_destroy(topology); }
};
using Topology = std::unique_ptr<hwloc_topology, DestroyTopology>;

// A device and its place in the tree while a report is made.
struct Found {
  TopologyDevice device;
  hwloc_obj_t place = nullptr;
};

Result<Topology> makeTopology() {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return Status::system(errno, "hwloc_topology_init");
  Topology topology(raw);
  hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  // These would start drivers and create contexts on devices that this process may not want to use.
  // The call fails where a component is not installed, which has the same effect.
  for (const char* component : {"cuda", "nvml", "opencl", "rsmi", "levelzero", "gl"}) {
    (void)hwloc_topology_set_components(raw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, component);
  }
  return topology;
}

Result<Topology> loadThisMachine() {
  PEERLANE_ASSIGN(Topology topology, makeTopology());
  if (hwloc_topology_load(topology.get()) != 0) {
    return Status::system(errno, "reading the topology of this machine");
  }
  return topology;
}

std::string listOf(hwloc_const_bitmap_t set) {
  char* raw = nullptr;
  if (set == nullptr || hwloc_bitmap_list_asprintf(&raw, set) < 0) return {};
  std::unique_ptr<char, void (*)(void*)> owner(raw, std::free);
  return raw;
}

std::string textOf(const char* text) {
  return text == nullptr ? std::string() : std::string(text);
}

std::string busIdOf(hwloc_obj_t pci) {
  const auto& at = pci->attr->pcidev;
  char text[32];
  std::snprintf(text, sizeof text, "%04x:%02x:%02x.%01x", static_cast<unsigned>(at.domain),
                static_cast<unsigned>(at.bus), static_cast<unsigned>(at.dev),
                static_cast<unsigned>(at.func));
  return text;
}

// The node when all memory near `object` is one node's, else -1.
int numaNodeOf(hwloc_topology_t topology, hwloc_obj_t object) {
  hwloc_obj_t near =
      object->type == HWLOC_OBJ_NUMANODE ? object : hwloc_get_non_io_ancestor_obj(topology, object);
  if (near == nullptr || near->nodeset == nullptr || hwloc_bitmap_weight(near->nodeset) != 1)
    return -1;
  return hwloc_bitmap_first(near->nodeset);
}

// All memory near one is near the other, or more: below one processor package, say. A device that
// belongs to the whole machine is near none in particular.
bool shareNodes(hwloc_topology_t topology, hwloc_obj_t a, hwloc_obj_t b) {
  hwloc_const_bitmap_t all = hwloc_get_root_obj(topology)->nodeset;
  std::array<hwloc_const_bitmap_t, 2> near{};
  for (size_t i = 0; i < 2; ++i) {
    hwloc_obj_t object = i == 0 ? a : b;
    if (object->type != HWLOC_OBJ_NUMANODE)
      object = hwloc_get_non_io_ancestor_obj(topology, object);
    if (object == nullptr || object->nodeset == nullptr) return false;
    near[i] = object->nodeset;
    if (hwloc_bitmap_weight(all) > 1 && hwloc_bitmap_isequal(near[i], all)) return false;
  }
  return hwloc_bitmap_isincluded(near[0], near[1]) || hwloc_bitmap_isincluded(near[1], near[0]);
}

// Accelerators, and display controllers of the makers of computing GPUs: not a server's console
// chip.
bool isGpuClass(hwloc_obj_t pci) {
  unsigned classId = pci->attr->pcidev.class_id;
  unsigned vendor = pci->attr->pcidev.vendor_id;
  bool computing = classId == 0x0302 || classId == 0x1200;
  bool knownMaker = vendor == 0x10de || vendor == 0x1002 || vendor == 0x8086;
  return computing || ((classId >> 8) == 0x03 && knownMaker);
}

// The PCI function an operating system device belongs to; itself when it is on no PCI bus.
hwloc_obj_t hardwareOf(hwloc_obj_t osDevice) {
  hwloc_obj_t object = osDevice->parent;
  while (object != nullptr && object->type == HWLOC_OBJ_OS_DEVICE) object = object->parent;
  return object != nullptr && object->type == HWLOC_OBJ_PCI_DEVICE ? object : osDevice;
}

// The states of its ports as hwloc notes them: "Port1State" is "4".
RdmaFunction rdmaFunctionOf(hwloc_obj_t osDevice) {
  RdmaFunction found{textOf(osDevice->name), {}};
  for (unsigned port = 1;; ++port) {
    const std::string key = "Port" + std::to_string(port) + "State";
    const char* const state = hwloc_obj_get_info_by_name(osDevice, key.c_str());
    if (state == nullptr) return found;
    found.ports.emplace_back(rdmaPortStateName(std::atoi(state)));
  }
}

class ReportBuilder {
 public:
  explicit ReportBuilder(hwloc_topology_t topology) : topology_(topology) {}

  TopologyReport build(std::string source) {
    report_.source = std::move(source);
    report_.packages = count(HWLOC_OBJ_PACKAGE);
    report_.cores = count(HWLOC_OBJ_CORE);
    report_.processors = count(HWLOC_OBJ_PU);
    addNumaNodes();
    addOsDevices();
    addNamelessGpus();
    finishDevices();
    addPaths();
    return std::move(report_);
  }

 private:
  unsigned count(hwloc_obj_type_t type) const {
    int number = hwloc_get_nbobjs_by_type(topology_, type);
    return number > 0 ? static_cast<unsigned>(number) : 0;
  }

  void addNumaNodes();
  void addOsDevices();
  void addNamelessGpus();
  void finishDevices();
  void addPaths();
  Found& deviceAt(hwloc_obj_t hardware, TopologyDeviceKind kind);
  DevicePath pathBetween(hwloc_obj_t a, hwloc_obj_t b) const;

  hwloc_topology_t topology_;
  TopologyReport report_;
  std::vector<Found> found_;
};

void ReportBuilder::addNumaNodes() {
  hwloc_obj_t node = nullptr;
  std::vector<hwloc_obj_t> nodes;
  while ((node = hwloc_get_next_obj_by_type(topology_, HWLOC_OBJ_NUMANODE, node)) != nullptr) {
    nodes.push_back(node);
    report_.numaNodes.push_back(
        {node->os_index, node->attr->numanode.local_memory, listOf(node->cpuset)});
    Found memory;
    memory.device.kind = TopologyDeviceKind::kHostMemory;
    memory.device.name = "node" + std::to_string(node->os_index);
    memory.device.numaNode = static_cast<int>(node->os_index);
    memory.place = node;
    found_.push_back(std::move(memory));
  }
  unsigned number = 1;
  hwloc_distances_s* distances = nullptr;
  if (hwloc_distances_get_by_type(topology_, HWLOC_OBJ_NUMANODE, &number, &distances,
                                  HWLOC_DISTANCES_KIND_MEANS_LATENCY, 0) != 0 ||
      number == 0) {
    return;
  }
  bool complete = true;
  std::vector<uint64_t> latencies;
  for (hwloc_obj_t from : nodes) {
    for (hwloc_obj_t to : nodes) {
      hwloc_uint64_t there = 0;
      hwloc_uint64_t back = 0;
      complete =
          hwloc_distances_obj_pair_values(distances, from, to, &there, &back) == 0 && complete;
      latencies.push_back(there);
    }
  }
  if (complete) report_.numaLatencies = std::move(latencies);
  hwloc_distances_release(topology_, distances);
}

Found& ReportBuilder::deviceAt(hwloc_obj_t hardware, TopologyDeviceKind kind) {
  for (Found& one : found_) {
    if (one.place == hardware && one.device.kind == kind) return one;
  }
  Found fresh;
  fresh.device.kind = kind;
  fresh.place = hardware;
  if (hardware->type == HWLOC_OBJ_PCI_DEVICE) {
    fresh.device.busId = busIdOf(hardware);
    fresh.device.model = textOf(hardware->name);
    if (fresh.device.model.empty()) {
      fresh.device.model = textOf(hwloc_obj_get_info_by_name(hardware, "PCIDevice"));
    }
  }
  fresh.device.numaNode = numaNodeOf(topology_, hardware);
  found_.push_back(std::move(fresh));
  return found_.back();
}

void ReportBuilder::addOsDevices() {
  hwloc_obj_t object = nullptr;
  while ((object = hwloc_get_next_osdev(topology_, object)) != nullptr) {
    hwloc_obj_t hardware = hardwareOf(object);
    bool onGpu = hardware->type == HWLOC_OBJ_PCI_DEVICE && isGpuClass(hardware);
    switch (object->attr->osdev.type) {
      case HWLOC_OBJ_OSDEV_NETWORK: {
        // The interface's name comes first, even where another name was seen before it.
        auto& names = deviceAt(hardware, TopologyDeviceKind::kNic).device.aliases;
        names.insert(names.begin(), textOf(object->name));
        break;
      }
      case HWLOC_OBJ_OSDEV_OPENFABRICS: {
        TopologyDevice& nic = deviceAt(hardware, TopologyDeviceKind::kNic).device;
        nic.aliases.push_back(textOf(object->name));
        nic.rdma.push_back(rdmaFunctionOf(object));
        break;
      }
      case HWLOC_OBJ_OSDEV_GPU:
      case HWLOC_OBJ_OSDEV_COPROC:
        // Recorded files may hold coprocessors that are not on PCI; consoles' display chips are
        // none.
        if (!onGpu && object->attr->osdev.type == HWLOC_OBJ_OSDEV_GPU) break;
        deviceAt(hardware, TopologyDeviceKind::kGpu).device.aliases.push_back(textOf(object->name));
        break;
      default: break;
    }
  }
}

void ReportBuilder::addNamelessGpus() {
  hwloc_obj_t object = nullptr;
  while ((object = hwloc_get_next_pcidev(topology_, object)) != nullptr) {
    if (isGpuClass(object)) deviceAt(object, TopologyDeviceKind::kGpu);
  }
}

void ReportBuilder::finishDevices() {
  for (Found& one : found_) {
    if (one.device.kind == TopologyDeviceKind::kHostMemory) continue;
    auto& names = one.device.aliases;
    auto cuda = std::find_if(names.begin(), names.end(),
                             [](const std::string& name) { return name.starts_with("cuda"); });
    if (cuda != names.end()) std::rotate(names.begin(), cuda, cuda + 1);
    one.device.name = names.empty() ? one.device.busId : names.front();
    if (!names.empty()) names.erase(names.begin());
  }
  std::stable_sort(found_.begin(), found_.end(), [](const Found& a, const Found& b) {
    return std::pair(a.device.kind, std::string_view(a.device.busId)) <
           std::pair(b.device.kind, std::string_view(b.device.busId));
  });
  for (Found& one : found_) report_.devices.push_back(one.device);
}

void ReportBuilder::addPaths() {
  for (const Found& from : found_) {
    for (const Found& to : found_) report_.paths.push_back(pathBetween(from.place, to.place));
  }
}

DevicePath ReportBuilder::pathBetween(hwloc_obj_t a, hwloc_obj_t b) const {
  if (a == b) return {PathKind::kSame, 0};
  std::vector<hwloc_obj_t> above;
  for (hwloc_obj_t object = a; object != nullptr; object = object->parent) above.push_back(object);
  unsigned hops = 0;
  hwloc_obj_t meeting = b;
  while (std::find(above.begin(), above.end(), meeting) == above.end()) {
    if (meeting->type == HWLOC_OBJ_BRIDGE) ++hops;
    meeting = meeting->parent;
  }
  for (hwloc_obj_t object : above) {
    if (object->type == HWLOC_OBJ_BRIDGE) ++hops;
    if (object == meeting) break;
  }
  if (meeting->type == HWLOC_OBJ_BRIDGE) {
    bool host = meeting->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_HOST;
    return {host ? PathKind::kPcieHostBridge : PathKind::kPcieSwitch, hops};
  }
  // Two functions of one chip may hang on one PCI device.
  if (meeting->type == HWLOC_OBJ_PCI_DEVICE) return {PathKind::kPcieSwitch, hops};
  if (shareNodes(topology_, a, b)) return {PathKind::kNumaNode, hops};
  return {PathKind::kSystem, hops + 1};
}

}  // namespace

const char* pathKindName(PathKind kind) {
  switch (kind) {
    case PathKind::kSame: return "same";
    case PathKind::kPcieSwitch: return "pcie-switch";
    case PathKind::kPcieHostBridge: return "pcie-host-bridge";
    case PathKind::kNumaNode: return "numa-node";
    case PathKind::kSystem: return "system";
  }
  return "unknown";
}

const char* rdmaPortStateName(int state) {
  constexpr std::array<const char*, 6> kNames{"without a state", "down",   "initialising",
                                              "armed",           "active", "active, deferred"};
  return state >= 0 && static_cast<size_t>(state) < kNames.size()
             ? kNames[static_cast<size_t>(state)]
             : "in no known state";
}

Result<TopologyReport> loadTopology() {
  PEERLANE_ASSIGN(Topology topology, loadThisMachine());
  return ReportBuilder(topology.get()).build("this machine");
}

Result<TopologyReport> loadTopologyFile(const std::string& path) {
  PEERLANE_ASSIGN(std::string xml, readWhole(path));
  PEERLANE_ASSIGN(Topology topology, makeTopology());
  // The parser wants the terminating zero counted.
  int bytes = static_cast<int>(xml.size()) + 1;
  if (hwloc_topology_set_xmlbuffer(topology.get(), xml.c_str(), bytes) != 0 ||
      hwloc_topology_load(topology.get()) != 0) {
    return Status(Code::kInvalidArgument,
                  "the file " + path +
                      " is not a topology; accepted is the XML of hwloc 2 (lstopo --of xml)");
  }
  return ReportBuilder(topology.get()).build(path);
}

Result<std::string> recordTopology() {
  PEERLANE_ASSIGN(Topology topology, loadThisMachine());
  char* buffer = nullptr;
  int bytes = 0;
  if (hwloc_topology_export_xmlbuffer(topology.get(), &buffer, &bytes, 0) != 0) {
    return Status::system(errno, "exporting the topology of this machine");
  }
  std::string xml(buffer);
  hwloc_free_xmlbuffer(topology.get(), buffer);
  return xml;
}

}  // namespace peerlane
