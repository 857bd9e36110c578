// SPDX-License-Identifier: Apache-2.0
#include "tools/topo_command.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "peerlane/core/text.h"
#include "peerlane/os/topology.h"
#include "tools/failure_report.h"
#include "tools/text_table.h"

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

std::string nodeTable(const TopologyReport& report) {
  TextTable table("lrl");
  table.addRow({"node", "memory", "processors"});
  for (const NumaNode& node : report.numaNodes)
    table.addRow({fmt::format("node{}", node.osIndex),
                  fmt::format("{:.1f} GiB", static_cast<double>(node.bytes) / (1ull << 30)),
                  node.cpus.empty() ? "none" : node.cpus});
  return table.toString();
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

std::string pathTable(const TopologyReport& report) {
  const size_t count = report.devices.size();
  TextTable table("l" + std::string(count, 'l'));
  std::vector<std::string> cells{"distance"};
  for (const TopologyDevice& device : report.devices) cells.push_back(device.name);
  table.addRow(std::move(cells));
  for (size_t row = 0; row < count; ++row) {
    cells = {report.devices[row].name};
    for (size_t column = 0; column < count; ++column) {
      const DevicePath& path = report.path(row, column);
      cells.push_back(path.kind == PathKind::kSame
                          ? "-"
                          : fmt::format("{}/{}", pathKindName(path.kind), path.hops));
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
  for (const TopologyDevice& device : report.devices)
    json["devices"].push_back({{"name", device.name},
                               {"kind", kindName(device.kind)},
                               {"aliases", device.aliases},
                               {"bus", device.busId},
                               {"model", device.model},
                               {"numa", device.numaNode}});
  for (size_t from = 0; from < report.devices.size(); ++from)
    for (size_t to = 0; to < report.devices.size(); ++to)
      json["paths"].push_back({{"from", report.devices[from].name},
                               {"to", report.devices[to].name},
                               {"path", pathKindName(report.path(from, to).kind)},
                               {"hops", report.path(from, to).hops}});
  return json;
}

Status runTopo(const TopoOptions& options) {
  PEERLANE_ASSIGN(const TopologyReport report,
                  options.from.empty() ? loadTopology() : loadTopologyFile(options.from));
  bool hasGpu = false;
  bool hasNic = false;
  for (const TopologyDevice& device : report.devices) {
    hasGpu |= device.kind == TopologyDeviceKind::kGpu;
    hasNic |= device.kind == TopologyDeviceKind::kNic;
  }
  fmt::print("{}: {} package(s), {} cores, {} processors\n\n{}{}\n{}{}\n{}", report.source,
             report.packages, report.cores, report.processors, nodeTable(report),
             latencyTable(report), deviceTable(report),
             fmt::format("{}{}", hasNic ? "" : "no NIC on PCI was found\n",
                         hasGpu ? "" : "no GPU was found\n"),
             pathTable(report));
  if (options.json.empty()) return Status::ok();
  std::ofstream file(options.json);
  // Names come from the system and need not be UTF-8.
  file << jsonOf(report).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
  file.close();
  if (!file) return Status::system(errno, "write " + options.json);
  return Status::ok();
}

}  // namespace

void addTopoCommand(CLI::App& app, int& exitCode) {
  CLI::App* command =
      app.add_subcommand("topo", "Show devices, NUMA nodes and the distances between them");
  auto options = std::make_shared<TopoOptions>();
  command->add_option("--from", options->from, "An hwloc XML file instead of this machine");
  command->add_option("--json", options->json, "Write the report to this file as well");
  command->callback([&exitCode, options] {
    if (const Status status = runTopo(*options); !status.isOk()) exitCode = reportFailure(status);
  });
}

}  // namespace peerlane
