// SPDX-License-Identifier: Apache-2.0
#include "tests/fake/software_hca/hca_settings.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <map>

namespace peerlane::softhca {
namespace {

[[noreturn]] void refuse(const char* name, const std::string& value, const char* accepted) {
  fprintf(stderr, "software HCA: %s is '%s'; accepted: %s\n", name, value.c_str(), accepted);
  abort();
}

std::string text(const char* name, const std::string& otherwise) {
  const char* value = getenv(name);
  return value == nullptr || *value == '\0' ? otherwise : value;
}

uint64_t toNumber(const char* name, const std::string& value) {
  char* end = nullptr;
  errno = 0;
  const uint64_t number = strtoull(value.c_str(), &end, 0);
  if (value.empty() || *end != '\0' || errno != 0 || value[0] == '-')
    refuse(name, value, "a number that is not negative");
  return number;
}

uint64_t number(const char* name, uint64_t otherwise) {
  const std::string value = text(name, "");
  return value.empty() ? otherwise : toNumber(name, value);
}

std::vector<std::string> list(const std::string& value, char separator = ',') {
  std::vector<std::string> found;
  for (size_t at = 0; at < value.size();) {
    const size_t end = std::min(value.find(separator, at), value.size());
    if (end > at) found.push_back(value.substr(at, end - at));
    at = end + 1;
  }
  return found;
}

template <class Value>
Value choice(const char* name, const std::map<std::string, Value>& choices, Value otherwise,
             const char* accepted) {
  const std::string value = text(name, "");
  if (value.empty()) return otherwise;
  const auto found = choices.find(value);
  if (found == choices.end()) refuse(name, value, accepted);
  return found->second;
}

std::vector<GidSetting> readGids() {
  constexpr const char* kName = "SOFTWARE_HCA_GIDS";
  // What a port has whose interface has an address of each family.
  const std::string value =
      text(kName, "v1:fe80::5c4a:%D,v2:fe80::5c4a:%D,v1:10.92.0.%D,v2:10.92.0.%D");
  std::vector<GidSetting> gids;
  for (const std::string& entry : list(value)) {
    GidSetting gid;
    const std::string version = entry.substr(0, 3);
    if (version != "v1:" && version != "v2:") refuse(kName, entry, "v1:ADDRESS or v2:ADDRESS");
    gid.isVersion2 = version == "v2:";
    const std::vector<std::string> parts = list(entry.substr(3), '@');
    if (parts.empty() || parts.size() > 2) refuse(kName, entry, "ADDRESS or ADDRESS@INTERFACE");
    gid.address = parts[0];
    if (parts.size() == 2) gid.interface = parts[1];
    gids.push_back(gid);
  }
  return gids;
}

Limits readLimits() {
  constexpr const char* kName = "SOFTWARE_HCA_LIMITS";
  Limits limits;
  const std::map<std::string, uint32_t*> names = {
      {"maxSge", &limits.maxSge},
      {"maxInline", &limits.maxInline},
      {"maxQueuePairs", &limits.maxQueuePairs},
      {"maxWork", &limits.maxWork},
      {"maxRegions", &limits.maxRegions},
      {"maxDomains", &limits.maxDomains},
      {"maxCompletions", &limits.maxCompletions},
      {"maxCompletionQueues", &limits.maxCompletionQueues},
      {"maxShared", &limits.maxShared},
      {"maxReads", &limits.maxReads},
      {"mtu", &limits.mtu},
      {"ports", &limits.ports},
  };
  for (const std::string& entry : list(text(kName, ""))) {
    const std::vector<std::string> parts = list(entry, '=');
    if (parts.size() != 2) refuse(kName, entry, "NAME=NUMBER");
    const uint64_t value = toNumber(kName, parts[1]);
    if (parts[0] == "lockedBytes") {
      limits.lockedBytes = value;
      continue;
    }
    const auto found = names.find(parts[0]);
    if (found == names.end()) refuse(kName, entry, "the names in hca_settings.h");
    if (value > INT32_MAX) refuse(kName, entry, "numbers below 2^31");
    *found->second = static_cast<uint32_t>(value);
  }
  return limits;
}

}  // namespace

Settings Settings::read() {
  Settings settings;
  settings.fabric =
      text("SOFTWARE_HCA_FABRIC", "/dev/shm/software_hca-" + std::to_string(getuid()));
  settings.devices = list(text("SOFTWARE_HCA_DEVICES", "sw0"));
  settings.iwarp = list(text("SOFTWARE_HCA_IWARP", ""));
  settings.infiniband = list(text("SOFTWARE_HCA_INFINIBAND", ""));
  settings.gids = readGids();
  settings.limits = readLimits();
  settings.behaviour = choice<Behaviour>(
      "SOFTWARE_HCA_BEHAVIOUR", {{"hardware", Behaviour::kHardware}, {"rxe", Behaviour::kRxe}},
      Behaviour::kHardware, "hardware, rxe");
  settings.order = choice<Order>(
      "SOFTWARE_HCA_ORDER",
      {{"ibta", Order::kIbta}, {"relaxed", Order::kRelaxed}, {"adaptive", Order::kAdaptive}},
      Order::kIbta, "ibta, relaxed, adaptive");
  settings.seed = number("SOFTWARE_HCA_SEED", 1);
  settings.windowNs = number("SOFTWARE_HCA_WINDOW_US", 100) * 1000;
  settings.acksUnplaced = choice<bool>("SOFTWARE_HCA_ACK", {{"placed", false}, {"received", true}},
                                       false, "placed, received");
  settings.ackDelayNs = number("SOFTWARE_HCA_ACK_US", 0) * 1000;
  settings.dmabufError = choice<int>("SOFTWARE_HCA_DMABUF",
                                     {{"yes", 0},
                                      {"late", 0},
                                      {"EOPNOTSUPP", EOPNOTSUPP},
                                      {"EPROTONOSUPPORT", EPROTONOSUPPORT},
                                      {"EINVAL", EINVAL}},
                                     EOPNOTSUPP, "yes, late, EOPNOTSUPP, EPROTONOSUPPORT, EINVAL");
  settings.dmabufRefused = list(text("SOFTWARE_HCA_DMABUF_REFUSED", ""));
  settings.isDmabufLate = text("SOFTWARE_HCA_DMABUF", "") == "late";
  settings.onDemand = choice<OnDemand>(
      "SOFTWARE_HCA_ODP", {{"no", OnDemand::kNo}, {"yes", OnDemand::kYes}, {"rxe", OnDemand::kRxe}},
      OnDemand::kNo, "no, yes, rxe");
  settings.dropsUnmapped = choice<bool>(
      "SOFTWARE_HCA_UNMAPPED", {{"crash", false}, {"dropped", true}}, false, "crash, dropped");
  settings.spinNs = number("SOFTWARE_HCA_SPIN_US", 20) * 1000;
  settings.assists =
      choice<bool>("SOFTWARE_HCA_ASSIST", {{"yes", true}, {"no", false}}, true, "yes, no");
  return settings;
}

}  // namespace peerlane::softhca
