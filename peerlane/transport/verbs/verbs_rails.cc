// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/verbs/verbs_rails.h"

#include <fmt/ranges.h>
#include <sched.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "peerlane/core/log.h"
#include "peerlane/os/topology.h"
#include "peerlane/os/verbs/wanted_devices.h"

namespace peerlane {
namespace {

using verbs::VerbsDevice;

constexpr uint32_t kMostByGpus = 4;

// The memory of the processor that runs this.
MemorySite siteOfHost() {
  MemorySite site;
  unsigned node = 0;
  if (::getcpu(nullptr, &node) == 0) site.numaNode = static_cast<int>(node);
  return site;
}

MemorySite siteOf(int gpu) {
  MemorySite site = siteOfHost();
  const auto known = cuda::gpus();
  if (!known) return site;
  for (const cuda::GpuFacts& each : *known)
    if (each.index == gpu) site.gpuBusId = each.busId;
  return site;
}

}  // namespace

RankRdma rankHere() {
  return [topology = std::optional<Result<TopologyReport>>()](
             const MemorySite& memory, const std::vector<RdmaCandidate>& candidates) mutable
         -> Result<std::vector<RankedRdmaDevice>> {
    if (memory.gpuBusId.empty() || candidates.size() < 2)
      return rankRdmaDevices(memory, candidates);
    if (!topology) topology = loadTopology();
    if (!*topology) return topology->status();
    return rankRdmaDevices(**topology, memory, candidates);
  };
}

uint32_t VerbsRails::most(const Config& config, const cuda::Gpus& gpus) {
  if (config.ibNics != 0) return config.ibNics;
  return std::clamp(static_cast<uint32_t>(gpus.size()), 1u, kMostByGpus);
}

Result<std::unique_ptr<VerbsDevice>> VerbsRails::open(uint32_t number, const Config& config) {
  if (names_.empty()) PEERLANE_RETURN_IF_ERROR(choose(config));
  if (number >= names_.size())
    return Status(Code::kNotSupported,
                  fmt::format("the GPUs of this context have no other nearest device than {}",
                              fmt::join(names_, ", ")));
  if (opened_[number]) return std::move(opened_[number]);
  PEERLANE_ASSIGN(const verbs::Library* const library, verbs::library(config.ibvLibrary));
  PEERLANE_ASSIGN(
      Devices found,
      VerbsDevice::openAll(*library, {.exclude = false, .exact = true, .names = {names_[number]}}));
  return std::move(found.front());
}

Status VerbsRails::choose(const Config& config) {
  PEERLANE_ASSIGN(Devices devices, verbs::openWanted(config));
  const std::vector<size_t> chosen = chosenOf(devices, config.ibNics);
  if (chosen.size() > 1) measure(devices, chosen);
  for (const size_t index : chosen) {
    names_.push_back(nameOf(*devices[index]));
    opened_.push_back(std::move(devices[index]));
  }
  PEERLANE_LOG_INFO("of {} RDMA devices are taken: {}", devices.size(), fmt::join(names_, ", "));
  return Status::ok();
}

// Where their distances are not known, as they come.
VerbsRails::Ranking VerbsRails::rank(const MemorySite& memory, const Devices& devices) const {
  std::vector<RdmaCandidate> candidates;
  candidates.reserve(devices.size());
  for (const auto& device : devices) candidates.push_back(rdmaCandidate(device->name()));
  auto ranked = rank_(memory, candidates);
  if (ranked) return std::move(*ranked);
  PEERLANE_LOG_WARN("the RDMA devices are taken as they come: {}", ranked.status().message());
  Ranking order;
  for (size_t i = 0; i < devices.size(); ++i)
    order.push_back({i, 0, std::string(ranked.status().message())});
  return order;
}

// `asked`: 0 by the GPUs.
std::vector<size_t> VerbsRails::chosenOf(const Devices& devices, uint32_t asked) const {
  std::vector<size_t> chosen;
  const auto add = [&](size_t index) {
    if (std::find(chosen.begin(), chosen.end(), index) == chosen.end()) chosen.push_back(index);
  };
  const Ranking order = rank(gpus_.empty() ? siteOfHost() : siteOf(gpus_.front()->gpu()), devices);
  add(order.front().index);
  const size_t most = asked != 0 ? asked : kMostByGpus;
  for (size_t i = 1; i < gpus_.size() && most > 1; ++i)
    add(rank(siteOf(gpus_[i]->gpu()), devices).front().index);
  if (asked != 0)
    for (const RankedRdmaDevice& one : order) add(one.index);
  chosen.resize(std::min(chosen.size(), most));
  return chosen;
}

void VerbsRails::measure(const Devices& devices, const std::vector<size_t>& chosen) {
  auto table = std::make_shared<LinkRails>();
  for (const size_t index : chosen) table->rails.push_back({.device = nameOf(*devices[index])});
  const auto each = [&](const MemorySite& memory, const auto& take) {
    for (RankedRdmaDevice& one : rank(memory, devices)) {
      const auto found = std::find(chosen.begin(), chosen.end(), one.index);
      if (found != chosen.end())
        take(table->rails[static_cast<size_t>(found - chosen.begin())],
             LinkRails::Distance{one.distance, std::move(one.reason)});
    }
  };
  each(siteOfHost(), [](LinkRails::Rail& rail, LinkRails::Distance distance) {
    rail.fromHost = std::move(distance);
  });
  for (const auto& gpu : gpus_)
    each(siteOf(gpu->gpu()), [&](LinkRails::Rail& rail, LinkRails::Distance distance) {
      rail.fromDevices.emplace_back(Device{DeviceKind::kCuda, gpu->gpu()}, std::move(distance));
    });
  table_ = std::move(table);
}

}  // namespace peerlane
