// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/verbs/wanted_devices.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "peerlane/os/verbs/verbs_library.h"

namespace peerlane::verbs {
namespace {

using Devices = std::vector<std::unique_ptr<VerbsDevice>>;

// What a user has named, and so wants, where there is no device; empty: nothing.
std::string deviceWish(const Config& config) {
  const InterfaceFilter& devices = config.ibDevices;
  if (!devices.exclude && !devices.names.empty())
    return fmt::format("PEERLANE_IB_HCA asks for {}", fmt::join(devices.names, ","));
  if (config.ibPort && (devices.exclude || devices.names.empty()))
    return "PEERLANE_IB_PORT asks for " + std::to_string(*config.ibPort);
  if (config.ibNics != 0) return "PEERLANE_IB_NICS asks for " + std::to_string(config.ibNics);
  return {};
}

// The same where there is no library.
std::string libraryWish(const Config& config) {
  if (config.ibvLibrary != Config().ibvLibrary)
    return "PEERLANE_IBV_SO asks for " + config.ibvLibrary;
  return deviceWish(config);
}

Status noneFor(const std::string& wish, const Status& why) {
  if (why.code() != Code::kNotSupported || wish.empty()) return why;
  return Status(Code::kInvalidArgument, wish + ": " + std::string(why.message()));
}

}  // namespace

std::string nameOf(const VerbsDevice& device) {
  return device.name() + ":" + std::to_string(device.port());
}

Result<Devices> openWanted(const Config& config) {
  const Result<const Library*> library = verbs::library(config.ibvLibrary);
  if (!library.isOk()) return noneFor(libraryWish(config), library.status());
  Result<Devices> found = VerbsDevice::openAll(**library, config.ibDevices, config.ibPort);
  if (!found.isOk()) return noneFor(deviceWish(config), found.status());
  if (config.ibNics <= found->size()) return found;
  std::vector<std::string> names;
  for (const auto& device : *found) names.push_back(nameOf(*device));
  return Status(
      Code::kInvalidArgument,
      fmt::format("PEERLANE_IB_NICS is {}; the devices that can be used are {}: {}",
                  static_cast<unsigned>(config.ibNics), names.size(), fmt::join(names, ", ")));
}

Result<std::vector<Gid>> usableGids(const VerbsDevice& device, const Config& config) {
  PEERLANE_ASSIGN(std::vector<Gid> gids, device.gids());
  if (config.ibGidIndex) {
    std::vector<uint32_t> there;
    for (const Gid& gid : gids) there.push_back(gid.index);
    std::erase_if(gids, [&](const Gid& gid) { return gid.index != *config.ibGidIndex; });
    if (gids.empty())
      return Status(Code::kInvalidArgument,
                    fmt::format("PEERLANE_IB_GID_INDEX is {}, where {} has no address; it has "
                                "addresses at {}",
                                *config.ibGidIndex, device.name(), fmt::join(there, ", ")));
  }
  std::stable_sort(gids.begin(), gids.end(), [](const Gid& a, const Gid& b) {
    return static_cast<int>(a.kind) > static_cast<int>(b.kind);
  });
  return gids;
}

std::vector<std::string> unmetSettings(const Config& config) {
  const Result<Devices> devices = openWanted(config);
  if (!devices.isOk()) {
    if (devices.status().code() != Code::kInvalidArgument) return {};
    return {std::string(devices.status().message())};
  }
  // Which of the devices a context takes is not known here: one that has it is enough.
  std::vector<std::string> unmet;
  const auto note = [&](const auto& check) {
    std::vector<std::string> refusals;
    for (const auto& device : *devices)
      if (const Status status = check(*device); status.code() == Code::kInvalidArgument)
        refusals.emplace_back(status.message());
    if (refusals.size() == devices->size())
      unmet.push_back(fmt::format("{}", fmt::join(refusals, "; ")));
  };
  note([&](const VerbsDevice& device) { return usableGids(device, config).status(); });
  if (config.ibPkey != Config().ibPkey)
    note([&](const VerbsDevice& device) { return device.pkeyIndex(config.ibPkey).status(); });
  return unmet;
}

}  // namespace peerlane::verbs
