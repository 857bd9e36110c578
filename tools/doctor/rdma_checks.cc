// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/rdma_checks.h"

#include <fmt/core.h>

namespace peerlane {
namespace {

using State = Finding::State;

std::string mebibytes(uint64_t bytes) {
  return bytes >= 1 << 20 ? fmt::format("{} MiB", bytes >> 20) : fmt::format("{} KiB", bytes >> 10);
}

Finding abilityFinding(const std::string& subject, const RdmaAbility& ability) {
  return {subject, ability.isThere ? State::kWorks : State::kAbsent, ability.text, ""};
}

Finding capacityFinding(const std::string& name, const RdmaDevice& device) {
  const RdmaCapacity& capacity = device.capacity;
  const std::string subject = name + ", registering";
  const std::string most = fmt::format("; it takes {} regions", device.mostRegions);
  if (capacity.isAtLeast)
    return {subject, State::kWorks,
            "at least " + mebibytes(capacity.bytes) + ", where the trial ended" + most, ""};
  return {subject, capacity.bytes == 0 ? State::kBroken : State::kLimited,
          mebibytes(capacity.bytes) + " at once; then: " + capacity.limit + most,
          "ulimit -l unlimited, or LimitMEMLOCK= of the service"};
}

void addPort(const RdmaDevice& device, const RdmaPort& port, std::vector<Finding>& findings) {
  const std::string subject = fmt::format("{}:{}", device.name, port.number);
  const State state = port.isChosen ? State::kWorks : State::kAbsent;
  findings.push_back({subject, state,
                      fmt::format("{}, {}, packets of {} bytes{}", port.state, port.link, port.mtu,
                                  port.isChosen ? "" : "; not the one that is used"),
                      ""});
  for (const std::string& gid : port.gids)
    findings.push_back({subject + ", gid", State::kWorks, gid, ""});
}

void addDevice(const RdmaDevice& device, std::vector<Finding>& findings) {
  const std::string place =
      device.busId.empty()
          ? "no PCI device"
          : device.busId +
                (device.numaNode < 0 ? std::string() : fmt::format(", node{}", device.numaNode));
  if (!device.refused.empty()) {
    findings.push_back({device.name, State::kLimited, "not used: " + device.refused, ""});
    return;
  }
  findings.push_back(
      {device.name, State::kWorks,
       fmt::format("{}, firmware {}", place, device.firmware.empty() ? "unknown" : device.firmware),
       ""});
  for (const RdmaPort& port : device.ports) addPort(device, port, findings);
  findings.push_back(capacityFinding(device.name, device));
  findings.push_back(abilityFinding(device.name + ", dma-buf", device.dmaBuf));
  findings.push_back(abilityFinding(device.name + ", on demand", device.onDemand));
  findings.push_back(abilityFinding(device.name + ", relaxed order", device.relaxedOrdering));
}

}  // namespace

std::vector<Finding> rdmaFindings(const RdmaReport& report) {
  std::vector<Finding> findings;
  for (const std::string& unmet : report.unmet)
    findings.push_back({"rdma settings", State::kBroken, unmet,
                        "correct the setting or unset it; a port must be active"});
  if (!report.isLoaded) {
    findings.push_back({"libibverbs", State::kAbsent, report.refused,
                        "where there is a NIC: apt install libibverbs1 ibverbs-providers"});
    return findings;
  }
  findings.push_back({"libibverbs", State::kWorks, report.library, ""});
  if (!report.refused.empty()) {
    findings.push_back({"rdma devices", State::kAbsent, report.refused,
                        "where there is a NIC: load its driver (/sys/class/infiniband lists the "
                        "device then), and give a container /dev/infiniband"});
    return findings;
  }
  if (report.devices.empty())
    findings.push_back({"rdma devices", State::kAbsent,
                        "none: other hosts are reached through tcp, if at all", ""});
  for (const RdmaDevice& device : report.devices) addDevice(device, findings);
  findings.push_back(abilityFinding("frees are watched", report.frees));
  findings.push_back(abilityFinding("peer memory", report.peerMemory));
  return findings;
}

}  // namespace peerlane
