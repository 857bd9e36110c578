// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/verbs/rdma_report.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <utility>

#include "peerlane/os/mappings/free_watch.h"
#include "peerlane/os/topology.h"
#include "peerlane/os/verbs/device_distance.h"
#include "peerlane/os/verbs/registration_probe.h"
#include "peerlane/os/verbs/verbs_device.h"
#include "peerlane/os/verbs/wanted_devices.h"

namespace peerlane {
namespace {

using verbs::VerbsDevice;

std::string sysfsOf(const std::string& device) {
  return "/sys/class/infiniband/" + device + "/device";
}

// The bus id of a device that is a PCI function; else empty.
std::string busIdOf(const std::string& device) {
  std::error_code error;
  const auto path = std::filesystem::canonical(sysfsOf(device), error);
  const bool isPci = !error && std::filesystem::exists(path / "config", error);
  return isPci ? path.filename().string() : std::string();
}

// What the PCI function asks for, in its configuration space: bit 4 of the device control register
// of the capability of PCI Express.
RdmaAbility relaxedOrderingOf(const std::string& device) {
  std::ifstream file(sysfsOf(device) + "/config", std::ios::binary);
  std::array<unsigned char, 256> config{};
  file.read(reinterpret_cast<char*>(config.data()), config.size());
  const auto bytes = static_cast<size_t>(file.gcount());
  if (bytes == 0) return {false, "the device is no PCI function that can be looked at"};
  if (bytes < config.size())
    return {false, "not known: only administrators can read the device's configuration"};
  constexpr unsigned char kPciExpress = 0x10;
  size_t at = config[0x34];
  for (int i = 0; i < 48 && at >= 0x40 && at + 10 <= config.size(); ++i, at = config[at + 1]) {
    if (config[at] != kPciExpress) continue;
    const bool isOn = (config[at + 8] & 0x10) != 0;
    return {isOn, isOn ? "switched on for the PCI function: writes may pass each other where a "
                         "region allows it"
                       : "switched off for the PCI function (setpci CAP_EXP+8.w)"};
  }
  return {false, "the device is not on PCI Express"};
}

RdmaAbility dmaBufOf(const VerbsDevice& device, ibv_pd* domain) {
  const Status probed = verbs::probeDmaBuf(device, domain);
  if (probed.isOk()) return {true, "the driver takes them (kernel and library, too)"};
  return {false, std::string(probed.message())};
}

RdmaAbility onDemandOf(const VerbsDevice& device) {
  const Result<verbs::OnDemandPaging> found = verbs::probeOnDemand(device);
  if (!found) return {false, std::string(found.status().message())};
  std::string text = found->isForAll ? "regions, and the whole address space" : "regions";
  if (found->isByPages) text += "; whole pages only, because rxe loses the place in a page";
  return {true, std::move(text)};
}

std::string limitText(int error, uint64_t registered) {
  rlimit limit{};
  (void)::getrlimit(RLIMIT_MEMLOCK, &limit);
  if ((error == ENOMEM || error == EAGAIN) && limit.rlim_cur != RLIM_INFINITY)
    return std::string(std::strerror(error)) + "; this process may lock " +
           std::to_string(limit.rlim_cur) + " bytes (ulimit -l)" +
           (registered > limit.rlim_cur ? ", which was not what stopped it" : "");
  return std::string(std::strerror(error)) +
         (error == ENOMEM ? ", though ulimit -l is unlimited" : "");
}

// The same memory again and again, because each registration counts.
RdmaCapacity capacityOf(const VerbsDevice& device, ibv_pd* domain) {
  constexpr uint64_t kStep = 64 << 20;
  constexpr uint64_t kMost = uint64_t{4} << 30;
  constexpr uint64_t kLeast = 4096;
  void* const memory =
      ::mmap(nullptr, kStep, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return {0, false, std::string("mmap: ") + std::strerror(errno)};
  RdmaCapacity capacity;
  std::vector<ibv_mr*> regions;
  for (uint64_t step = kStep; step >= kLeast && capacity.bytes < kMost;) {
    ibv_mr* const region = device.library().ibv_reg_mr_iova2(
        domain, memory, step, reinterpret_cast<uintptr_t>(memory),
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
    if (region != nullptr) {
      regions.push_back(region);
      capacity.bytes += step;
    } else {
      capacity.limit = limitText(errno, capacity.bytes);
      step /= 2;
    }
  }
  capacity.isAtLeast = capacity.bytes >= kMost;
  if (capacity.isAtLeast) capacity.limit.clear();
  for (ibv_mr* const region : regions) (void)device.library().ibv_dereg_mr(region);
  (void)::munmap(memory, kStep);
  return capacity;
}

std::vector<RdmaPort> portsOf(const VerbsDevice& device) {
  std::vector<RdmaPort> ports;
  for (unsigned number = 1; number <= device.limits().phys_port_cnt; ++number) {
    const auto state = device.stateOf(static_cast<uint8_t>(number));
    if (!state.isOk()) {
      ports.push_back({number, std::string(state.status().message()), false, "", 0, {}});
      continue;
    }
    RdmaPort port{.number = number,
                  .state = rdmaPortStateName(state->state),
                  .isChosen = number == device.port(),
                  .link = state->link_layer == IBV_LINK_LAYER_ETHERNET ? "Ethernet" : "InfiniBand",
                  .mtu = 128u << state->active_mtu,
                  .gids = {}};
    if (port.isChosen)
      if (const auto gids = device.gids(); gids.isOk())
        for (const verbs::Gid& gid : *gids)
          port.gids.push_back(std::to_string(gid.index) + " " + gid.text());
    ports.push_back(std::move(port));
  }
  return ports;
}

RdmaDevice inspect(const VerbsDevice& device, RdmaProbe probe) {
  RdmaDevice report;
  report.name = device.name();
  report.firmware = device.limits().fw_ver;
  report.busId = busIdOf(device.name());
  report.numaNode = rdmaCandidate(device.name()).numaNode;
  report.ports = portsOf(device);
  report.mostRegions = static_cast<uint64_t>(device.limits().max_mr);
  report.onDemand = onDemandOf(device);
  report.relaxedOrdering = relaxedOrderingOf(device.name());
  ibv_pd* const domain = device.library().ibv_alloc_pd(device.handle());
  if (domain == nullptr) {
    report.refused = std::string("it makes no protection domain: ") + std::strerror(errno);
    return report;
  }
  report.dmaBuf = dmaBufOf(device, domain);
  if (probe == RdmaProbe::kTry) report.capacity = capacityOf(device, domain);
  (void)device.library().ibv_dealloc_pd(domain);
  return report;
}

RdmaAbility findPeerMemory() {
  const Result<std::string> found = verbs::findPeerMemoryModule();
  return {found.isOk(), found ? *found : std::string(found.status().message())};
}

RdmaAbility findFreeWatch() {
  const Status probed = FreeWatch::probe();
  if (!probed.isOk()) return {false, std::string(probed.message())};
  return {true, "of private memory (userfaultfd): what the program did not register can be, too"};
}

}  // namespace

RdmaReport inspectRdma(const Config& config, RdmaProbe probe) {
  RdmaReport report;
  report.library = config.ibvLibrary;
  report.frees = findFreeWatch();
  report.peerMemory = findPeerMemory();
  if (probe == RdmaProbe::kTry) report.unmet = verbs::unmetSettings(config);
  const auto library = verbs::library(config.ibvLibrary);
  if (!library.isOk()) {
    report.refused = library.status().message();
    return report;
  }
  report.isLoaded = true;
  const auto found = VerbsDevice::survey(**library, config.ibDevices, config.ibPort);
  if (!found.isOk()) {
    report.refused = found.status().message();
    return report;
  }
  for (const auto& device : found->devices) report.devices.push_back(inspect(*device, probe));
  for (const auto& [name, why] : found->refused) {
    RdmaDevice& refused = report.devices.emplace_back();
    refused.name = name;
    refused.refused = why.message();
    refused.busId = busIdOf(name);
    refused.numaNode = rdmaCandidate(name).numaNode;
  }
  return report;
}

}  // namespace peerlane
