// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/topo_command.h"

#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "peerlane/core/config.h"
#include "peerlane/core/text.h"
#include "peerlane/memory/gpu_list.h"
#include "peerlane/os/topology.h"
#include "peerlane/os/verbs/rdma_report.h"
#include "tools/memory/device_bytes.h"
#include "tools/report/failure_report.h"
#include "tools/report/output_file.h"
#include "tools/report/text_table.h"

namespace peerlane {
namespace {

struct TopoOptions {
  std::string from;
  std::string json;
};

const char* kindName(TopologyDeviceKind kind) {
  switch (kind) {
    case TopologyDeviceKind::kHostMemory: return "memory";
    case TopologyDeviceKind::kNic: return "nic";
    case TopologyDeviceKind::kGpu: return "gpu";
  }
  return "unknown";
}

std::string joined(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) all += (all.empty() ? "" : ",") + text;
  return all;
}

// `total`: of the machine; 0: not known, it is a recorded one.
std::string nodeTable(const TopologyReport& report, uint64_t total) {
  TextTable table("lrl");
  table.addRow({"node", "memory", "processors"});
  for (const NumaNode& node : report.numaNodes)
    table.addRow({fmt::format("node{}", node.osIndex),
                  fmt::format("{:.1f} GiB", static_cast<double>(node.bytes) / (1ull << 30)),
                  node.cpus.empty() ? "none" : node.cpus});
  if (total != 0)
    table.addRow(
        {"all", fmt::format("{:.1f} GiB", static_cast<double>(total) / (1ull << 30)), "-"});
  return table.toString();
}

// Of all nodes, as the kernel counts it: memory that was plugged in later need not be in any node's
// number.
uint64_t machineBytes() {
  return static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

std::string latencyTable(const TopologyReport& report) {
  const size_t count = report.numaNodes.size();
  if (report.numaLatencies.size() != count * count) return "";
  TextTable table("l" + std::string(count, 'r'));
  std::vector<std::string> cells{"latency"};
  for (const NumaNode& node : report.numaNodes)
    cells.push_back(fmt::format("node{}", node.osIndex));
  table.addRow(std::move(cells));
  for (size_t row = 0; row < count; ++row) {
    cells = {fmt::format("node{}", report.numaNodes[row].osIndex)};
    for (size_t column = 0; column < count; ++column)
      cells.push_back(std::to_string(report.numaLatencies[row * count + column]));
    table.addRow(std::move(cells));
  }
  return "\n" + table.toString();
}

std::string deviceTable(const TopologyReport& report) {
  TextTable table("llllll");
  table.addRow({"device", "kind", "node", "bus", "also", "model"});
  for (const TopologyDevice& device : report.devices)
    table.addRow({device.name, kindName(device.kind),
                  device.numaNode < 0 ? "-" : std::to_string(device.numaNode),
                  device.busId.empty() ? "-" : device.busId,
                  device.aliases.empty() ? "-" : joined(device.aliases), device.model});
  return table.toString();
}

std::string pathText(const DevicePath& path) {
  return path.kind == PathKind::kSame ? "-"
                                      : fmt::format("{}/{}", pathKindName(path.kind), path.hops);
}

bool holds(const TopologyReport& report, const std::string& rdmaDevice) {
  for (const TopologyDevice& device : report.devices)
    for (const RdmaFunction& rdma : device.rdma)
      if (rdma.name == rdmaDevice) return true;
  return false;
}

// Devices of libibverbs that the report has no place for: those in software.
std::vector<RdmaDevice> findPlaceless(const TopologyReport& report) {
  const auto config = Config::fromEnvironment();
  if (!config.isOk()) return {};  // doctor shows it
  std::vector<RdmaDevice> devices = inspectRdma(*config, RdmaProbe::kLook).devices;
  std::erase_if(devices, [&](const RdmaDevice& one) { return holds(report, one.name); });
  return devices;
}

std::string portsOf(const RdmaDevice& device) {
  if (!device.refused.empty()) return "not used: " + device.refused;
  std::vector<std::string> states;
  for (const RdmaPort& port : device.ports) states.push_back(port.state);
  return joined(states);
}

// One line is one device as libibverbs names it: how far it is from each memory.
std::string rdmaTable(const TopologyReport& report, const std::vector<RdmaDevice>& placeless) {
  std::vector<size_t> memories;
  for (size_t i = 0; i < report.devices.size(); ++i)
    if (report.devices[i].kind != TopologyDeviceKind::kNic) memories.push_back(i);
  TextTable table("lll" + std::string(memories.size(), 'l'));
  std::vector<std::string> cells{"rdma", "nic", "ports"};
  for (const size_t memory : memories) cells.push_back(report.devices[memory].name);
  table.addRow(std::move(cells));
  bool isThere = !placeless.empty();
  for (size_t nic = 0; nic < report.devices.size(); ++nic)
    for (const RdmaFunction& rdma : report.devices[nic].rdma) {
      isThere = true;
      const TopologyDevice& device = report.devices[nic];
      cells = {rdma.name, device.name, rdma.ports.empty() ? "?" : joined(rdma.ports)};
      for (const size_t memory : memories)
        cells.push_back(device.busId.empty() ? "no place" : pathText(report.path(nic, memory)));
      table.addRow(std::move(cells));
    }
  for (const RdmaDevice& device : placeless) {
    cells = {device.name, "-", portsOf(device)};
    cells.resize(3 + memories.size(), "no place");
    table.addRow(std::move(cells));
  }
  return isThere ? "\n" + table.toString() : "";
}

std::string pathTable(const TopologyReport& report) {
  const size_t count = report.devices.size();
  TextTable table("l" + std::string(count, 'l'));
  std::vector<std::string> cells{"distance"};
  for (const TopologyDevice& device : report.devices) cells.push_back(device.name);
  table.addRow(std::move(cells));
  for (size_t row = 0; row < count; ++row) {
    cells = {report.devices[row].name};
    for (size_t column = 0; column < count; ++column) {
      cells.push_back(pathText(report.path(row, column)));
    }
    table.addRow(std::move(cells));
  }
  return table.toString();
}

nlohmann::json jsonOf(const TopologyReport& report) {
  nlohmann::json json = {{"source", report.source},         {"packages", report.packages},
                         {"cores", report.cores},           {"processors", report.processors},
                         {"numa", nlohmann::json::array()}, {"devices", nlohmann::json::array()},
                         {"paths", nlohmann::json::array()}};
  for (const NumaNode& node : report.numaNodes)
    json["numa"].push_back({{"node", node.osIndex}, {"bytes", node.bytes}, {"cpus", node.cpus}});
  json["numa_latencies"] = report.numaLatencies;
  for (const TopologyDevice& device : report.devices) {
    nlohmann::json rdma = nlohmann::json::array();
    for (const RdmaFunction& one : device.rdma)
      rdma.push_back({{"name", one.name}, {"ports", one.ports}});
    json["devices"].push_back({{"name", device.name},
                               {"kind", kindName(device.kind)},
                               {"aliases", device.aliases},
                               {"rdma", std::move(rdma)},
                               {"bus", device.busId},
                               {"model", device.model},
                               {"numa", device.numaNode}});
  }
  for (size_t from = 0; from < report.devices.size(); ++from)
    for (size_t to = 0; to < report.devices.size(); ++to)
      json["paths"].push_back({{"from", report.devices[from].name},
                               {"to", report.devices[to].name},
                               {"path", pathKindName(report.path(from, to).kind)},
                               {"hops", report.path(from, to).hops}});
  return json;
}

// GPUs as CUDA sees them, and how each reaches the others.
struct GpuReport {
  std::vector<Gpu> gpus;
  std::vector<GpuPath> paths;  // row by row
  std::string absent;          // why there are none

  const GpuPath& path(size_t from, size_t to) const { return paths[from * gpus.size() + to]; }
};

GpuReport findGpus() {
  GpuReport report;
  auto gpus = listGpus();
  if (!gpus.isOk()) {
    report.absent = gpus.status().message();
    return report;
  }
  report.gpus = *std::move(gpus);
  for (const Gpu& from : report.gpus)
    for (const Gpu& to : report.gpus) {
      const Result<GpuPath> path =
          from.index == to.index ? GpuPath{} : findGpuPath(from.index, to.index);
      report.paths.push_back(path.isOk() ? *path : GpuPath{});
    }
  return report;
}

std::string gpuTable(const GpuReport& report) {
  if (report.gpus.empty()) return "no GPU can be used: " + report.absent + "\n";
  TextTable table("lrllll");
  table.addRow({"gpu", "memory", "compute", "bus", "name", "uuid"});
  for (const Gpu& gpu : report.gpus)
    table.addRow({fmt::format("cuda:{}", gpu.index),
                  fmt::format("{:.1f} GiB", static_cast<double>(gpu.memoryBytes) / (1ull << 30)),
                  fmt::format("{}.{}", gpu.computeMajor, gpu.computeMinor), gpu.busId, gpu.name,
                  gpu.uuid});
  return fmt::format("CUDA {}\n{}", cudaVersionText(), table.toString());
}

// One line is the view of one GPU; "NVLink/0": kind and the driver's rank, 0 being the best.
std::string gpuPathTable(const GpuReport& report) {
  if (report.gpus.size() < 2) return "";
  TextTable table(std::string(report.gpus.size() + 1, 'l'));
  std::vector<std::string> cells{"direct access"};
  for (const Gpu& gpu : report.gpus) cells.push_back(fmt::format("cuda:{}", gpu.index));
  table.addRow(std::move(cells));
  for (size_t row = 0; row < report.gpus.size(); ++row) {
    cells = {fmt::format("cuda:{}", report.gpus[row].index)};
    for (size_t column = 0; column < report.gpus.size(); ++column) {
      const GpuPath& path = report.path(row, column);
      cells.push_back(row == column  ? "-"
                      : !path.direct ? "none"
                                     : fmt::format("{}/{}", gpuPathName(path), path.rank));
    }
    table.addRow(std::move(cells));
  }
  return "\n" + table.toString();
}

void addGpus(const GpuReport& report, nlohmann::json& json) {
  json["cuda"] = cudaVersionText();
  json["gpus"] = nlohmann::json::array();
  json["gpu_paths"] = nlohmann::json::array();
  if (!report.absent.empty()) json["gpus_absent"] = report.absent;
  for (const Gpu& gpu : report.gpus)
    json["gpus"].push_back({{"index", gpu.index},
                            {"name", gpu.name},
                            {"bus", gpu.busId},
                            {"uuid", gpu.uuid},
                            {"bytes", gpu.memoryBytes},
                            {"compute", fmt::format("{}.{}", gpu.computeMajor, gpu.computeMinor)},
                            {"exports_descriptors", gpu.exportsDescriptors},
                            {"fabric_handles", gpu.fabricHandles}});
  for (size_t from = 0; from < report.gpus.size(); ++from)
    for (size_t to = 0; to < report.gpus.size(); ++to)
      if (from != to)
        json["gpu_paths"].push_back({{"from", report.gpus[from].index},
                                     {"to", report.gpus[to].index},
                                     {"path", gpuPathName(report.path(from, to))},
                                     {"rank", report.path(from, to).rank}});
}

// The files that --from and --json name: the one is read, the other can be made.
struct TopoFiles {
  TopologyReport report;
  std::unique_ptr<OutputFile> json;
};

Result<TopoFiles> openFiles(const TopoOptions& options) {
  TopoFiles files;
  PEERLANE_ASSIGN(files.report,
                  options.from.empty() ? loadTopology() : loadTopologyFile(options.from));
  if (options.json.empty()) return files;
  PEERLANE_ASSIGN(files.json, OutputFile::create(options.json, OutputFile::Existing::kReplace));
  return files;
}

CommandEnd runTopo(const TopoOptions& options) {
  const auto files = openFiles(options);
  if (!files.isOk()) return CommandEnd::notRead(files.status());
  const TopologyReport& report = files->report;
  const bool isHere = options.from.empty();
  const std::vector<RdmaDevice> placeless =
      isHere ? findPlaceless(report) : std::vector<RdmaDevice>();
  const uint64_t total = isHere ? machineBytes() : 0;
  bool hasGpu = false;
  bool hasNic = false;
  for (const TopologyDevice& device : report.devices) {
    hasGpu |= device.kind == TopologyDeviceKind::kGpu;
    hasNic |= device.kind == TopologyDeviceKind::kNic;
  }
  fmt::print("{}: {} package(s), {} cores, {} processors\n\n{}{}\n{}{}\n{}{}", report.source,
             report.packages, report.cores, report.processors, nodeTable(report, total),
             latencyTable(report), deviceTable(report),
             fmt::format("{}{}", hasNic ? "" : "no NIC on PCI was found\n",
                         hasGpu ? "" : "no GPU was found on PCI\n"),
             pathTable(report), rdmaTable(report, placeless));
  nlohmann::json json = jsonOf(report);
  for (const RdmaDevice& device : placeless)
    json["rdma_without_place"].push_back({{"name", device.name}, {"ports", portsOf(device)}});
  if (isHere) {  // a recording holds no GPUs as CUDA sees them
    const GpuReport gpus = findGpus();
    fmt::print("\n{}{}", gpuTable(gpus), gpuPathTable(gpus));
    addGpus(gpus, json);
    json["memory_bytes"] = total;
  }
  if (files->json == nullptr) return Status::ok();
  // Names come from the system and need not be UTF-8.
  const std::string text =
      json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  PEERLANE_RETURN_IF_ERROR(files->json->append(std::as_bytes(std::span(text))));
  return files->json->commit();
}

}  // namespace

void addTopoCommand(CLI::App& app, int& exitCode) {
  CLI::App* command =
      app.add_subcommand("topo", "Show devices, NUMA nodes and the distances between them");
  auto options = std::make_shared<TopoOptions>();
  command->add_option("--from", options->from, "An hwloc XML file instead of this machine");
  command->add_option("--json", options->json, "Write the report to this file as well");
  command->callback([&exitCode, options] { exitCode = runTopo(*options).report(); });
}

}  // namespace peerlane
