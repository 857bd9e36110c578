// SPDX-License-Identifier: Apache-2.0
//
// What verbs call things, and the few exported functions that need no device: names of states,
// rates, fork support, files of sysfs.
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>

namespace {

template <size_t kCount>
const char* nameIn(const std::array<const char*, kCount>& names, int value) {
  return value >= 0 && static_cast<size_t>(value) < kCount ? names[static_cast<size_t>(value)]
                                                           : "unknown";
}

struct Rate {
  ibv_rate code;
  int multiple;  // of 2.5 Gbit/s; 0: it is none
  int megabits;
};
constexpr Rate kRates[] = {{IBV_RATE_2_5_GBPS, 1, 2500},      {IBV_RATE_5_GBPS, 2, 5000},
                           {IBV_RATE_10_GBPS, 4, 10000},      {IBV_RATE_20_GBPS, 8, 20000},
                           {IBV_RATE_30_GBPS, 12, 30000},     {IBV_RATE_40_GBPS, 16, 40000},
                           {IBV_RATE_60_GBPS, 24, 60000},     {IBV_RATE_80_GBPS, 32, 80000},
                           {IBV_RATE_120_GBPS, 48, 120000},   {IBV_RATE_14_GBPS, 0, 14062},
                           {IBV_RATE_56_GBPS, 0, 56250},      {IBV_RATE_112_GBPS, 0, 112500},
                           {IBV_RATE_168_GBPS, 0, 168750},    {IBV_RATE_25_GBPS, 10, 25781},
                           {IBV_RATE_100_GBPS, 40, 103125},   {IBV_RATE_200_GBPS, 80, 206250},
                           {IBV_RATE_300_GBPS, 120, 309375},  {IBV_RATE_28_GBPS, 0, 28125},
                           {IBV_RATE_50_GBPS, 20, 53125},     {IBV_RATE_400_GBPS, 160, 425000},
                           {IBV_RATE_600_GBPS, 240, 637500},  {IBV_RATE_800_GBPS, 320, 850000},
                           {IBV_RATE_1200_GBPS, 480, 1275000}};

template <class Matches>
const Rate* findRate(Matches&& matches) {
  const auto* found = std::find_if(std::begin(kRates), std::end(kRates), matches);
  return found == std::end(kRates) ? nullptr : found;
}

}  // namespace

// NOLINTBEGIN(readability-identifier-naming): names of libibverbs.
extern "C" {

const char* ibv_wc_status_str(ibv_wc_status status) {
  static constexpr std::array<const char*, 24> kNames = {"success",
                                                         "local length error",
                                                         "local QP operation error",
                                                         "local EE context operation error",
                                                         "local protection error",
                                                         "Work Request Flushed Error",
                                                         "memory management operation error",
                                                         "bad response error",
                                                         "local access error",
                                                         "remote invalid request error",
                                                         "remote access error",
                                                         "remote operation error",
                                                         "transport retry counter exceeded",
                                                         "RNR retry counter exceeded",
                                                         "local RDD violation error",
                                                         "remote invalid RD request",
                                                         "aborted error",
                                                         "invalid EE context number",
                                                         "invalid EE context state",
                                                         "fatal error",
                                                         "response timeout error",
                                                         "general error",
                                                         "TM error",
                                                         "TM software rendezvous"};
  return nameIn(kNames, status);
}

const char* ibv_event_type_str(ibv_event_type event) {
  static constexpr std::array<const char*, 20> kNames = {"CQ error",
                                                         "local work queue catastrophic error",
                                                         "invalid request local work queue error",
                                                         "local access violation work queue error",
                                                         "communication established",
                                                         "send queue drained",
                                                         "path migrated",
                                                         "path migration request error",
                                                         "local catastrophic error",
                                                         "port active",
                                                         "port error",
                                                         "LID change",
                                                         "P_Key change",
                                                         "SM change",
                                                         "SRQ catastrophic error",
                                                         "SRQ limit reached",
                                                         "last WQE reached",
                                                         "set client reregistration",
                                                         "GID table change",
                                                         "WQ fatal"};
  return nameIn(kNames, event);
}

const char* ibv_port_state_str(ibv_port_state state) {
  static constexpr std::array<const char*, 6> kNames = {
      "no state change (NOP)", "down", "init", "armed", "active", "active defer"};
  return nameIn(kNames, state);
}

const char* ibv_node_type_str(ibv_node_type type) {
  static constexpr std::array<const char*, 8> kNames = {
      "unknown",           "InfiniBand channel adapter",
      "InfiniBand switch", "InfiniBand router",
      "iWARP NIC",         "usNIC",
      "usNIC UDP",         "unspecified"};
  return nameIn(kNames, type);
}

int ibv_rate_to_mult(ibv_rate rate) {
  const Rate* found = findRate([&](const Rate& row) { return row.code == rate; });
  return found == nullptr || found->multiple == 0 ? -1 : found->multiple;
}
ibv_rate mult_to_ibv_rate(int multiple) {
  const Rate* found = findRate([&](const Rate& row) { return row.multiple == multiple; });
  return found == nullptr || multiple == 0 ? IBV_RATE_MAX : found->code;
}
int ibv_rate_to_mbps(ibv_rate rate) {
  const Rate* found = findRate([&](const Rate& row) { return row.code == rate; });
  return found == nullptr ? -1 : found->megabits;
}
ibv_rate mbps_to_ibv_rate(int megabits) {
  const Rate* found = findRate([&](const Rate& row) { return row.megabits == megabits; });
  return found == nullptr ? IBV_RATE_MAX : found->code;
}

ibv_fork_status ibv_is_fork_initialized() {
  return IBV_FORK_UNNEEDED;
}
int ibv_dontfork_range(void*, size_t) {
  return 0;
}
int ibv_dofork_range(void*, size_t) {
  return 0;
}

const char* ibv_get_sysfs_path() {
  return "/sys";
}
int ibv_read_sysfs_file(const char* folder, const char* file, char* out, size_t size) {
  std::array<char, 512> path;
  const int length = snprintf(path.data(), path.size(), "%s/%s", folder, file);
  if (length < 0 || static_cast<size_t>(length) >= path.size()) return -1;
  const int fd = open(path.data(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  auto got = static_cast<int>(read(fd, out, size));
  close(fd);
  if (got > 0 && out[got - 1] == '\n')
    out[--got] = '\0';
  else if (got >= 0 && static_cast<size_t>(got) < size)
    out[got] = '\0';
  return got;
}

}  // extern "C"
// NOLINTEND(readability-identifier-naming)
