// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/verbs/verbs_device.h"

#include <arpa/inet.h>
#include <endian.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace peerlane::verbs {
namespace {

std::string lastError(const std::string& what) {
  return what + ": " + std::strerror(errno);
}

const char* stateName(ibv_port_state state) {
  switch (state) {
    case IBV_PORT_DOWN: return "down";
    case IBV_PORT_INIT: return "initialising";
    case IBV_PORT_ARMED: return "armed";
    case IBV_PORT_ACTIVE: return "active";
    default: return "in no known state";
  }
}

std::string portNumbers(int count) {
  return count == 1 ? "port 1" : "ports 1 to " + std::to_string(count);
}

// The exported function fills the older structure, which is the beginning of today's.
int queryPort(const Library& library, ibv_context* context, uint8_t port, ibv_port_attr& state) {
  state = {};
  return (library.ibv_query_port)(context, port, reinterpret_cast<_compat_ibv_port_attr*>(&state));
}

bool allows(const InterfaceFilter& filter, const std::string& device, uint8_t port) {
  const std::string withPort = device + ":" + std::to_string(port);
  return filter.exclude ? filter.allows(device) && filter.allows(withPort)
                        : filter.allows(device) || filter.allows(withPort);
}

// Two settings may name the port: they name the same one.
Status agree(const InterfaceFilter& filter, std::optional<uint8_t> port) {
  if (!port || filter.exclude) return Status::ok();
  for (const std::string& name : filter.names) {
    const size_t colon = name.rfind(':');
    if (colon == std::string::npos || name.substr(colon + 1) == std::to_string(*port)) continue;
    return Status(Code::kInvalidArgument, "PEERLANE_IB_HCA names " + name +
                                              " with its port, and PEERLANE_IB_PORT is " +
                                              std::to_string(*port));
  }
  return Status::ok();
}

// The ports of a device that the filter names, where it names several.
std::vector<std::optional<uint8_t>> portsOf(const InterfaceFilter& filter,
                                            const std::string& device,
                                            std::optional<uint8_t> wanted) {
  std::vector<std::optional<uint8_t>> ports;
  if (!wanted && !filter.exclude)
    for (int port = 1; port <= UINT8_MAX; ++port)
      if (std::find(filter.names.begin(), filter.names.end(),
                    device + ":" + std::to_string(port)) != filter.names.end())
        ports.emplace_back(static_cast<uint8_t>(port));
  if (ports.size() < 2) ports.assign(1, wanted);
  return ports;
}

}  // namespace

bool Gid::isIpv4() const {
  static constexpr std::array<uint8_t, 12> kMapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::equal(kMapped.begin(), kMapped.end(), bytes.begin());
}

bool Gid::isLinkLocal() const {
  return bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80;
}

std::string Gid::text() const {
  std::array<char, INET6_ADDRSTRLEN> address{};
  ::inet_ntop(AF_INET6, bytes.data(), address.data(), address.size());
  constexpr std::array<const char*, 3> kKinds{"InfiniBand", "RoCE v1", "RoCE v2"};
  return std::string(address.data()) + " (" + kKinds[static_cast<size_t>(kind)] + ")";
}

Result<VerbsDevice::Survey> VerbsDevice::survey(const Library& library,
                                                const InterfaceFilter& filter,
                                                std::optional<uint8_t> port) {
  PEERLANE_RETURN_IF_ERROR(agree(filter, port));
  int count = 0;
  ibv_device** const list = library.ibv_get_device_list(&count);
  if (list == nullptr)
    return Status(Code::kNotSupported, lastError(library.file + ": ibv_get_device_list"));
  Survey survey;
  for (int i = 0; i < count; ++i) {
    const std::string name = library.ibv_get_device_name(list[i]);
    for (const std::optional<uint8_t> each : portsOf(filter, name, port)) {
      auto opened = open(library, list[i], filter, each);
      if (opened)
        survey.devices.push_back(std::move(*opened));
      else
        survey.refused.push_back({name, opened.status()});
    }
  }
  library.ibv_free_device_list(list);
  return survey;
}

Result<std::vector<std::unique_ptr<VerbsDevice>>> VerbsDevice::openAll(
    const Library& library, const InterfaceFilter& filter, std::optional<uint8_t> port) {
  PEERLANE_ASSIGN(Survey found, survey(library, filter, port));
  if (!found.devices.empty()) return std::move(found.devices);
  std::string why = "no RDMA device that can be used";
  for (const Survey::Refused& one : found.refused)
    why += "; " + one.name + ": " + std::string(one.why.message());
  return Status(Code::kNotSupported, std::move(why));
}

Result<std::unique_ptr<VerbsDevice>> VerbsDevice::open(const Library& library, ibv_device* device,
                                                       const InterfaceFilter& filter,
                                                       std::optional<uint8_t> port) {
  const std::string name = library.ibv_get_device_name(device);
  // Writes of iWARP say nothing about their order, and its connections need another way to be made.
  if (device->transport_type != IBV_TRANSPORT_IB)
    return Status(Code::kNotSupported, device->transport_type == IBV_TRANSPORT_IWARP
                                           ? "iWARP, which is not supported; need InfiniBand or "
                                             "RoCE"
                                           : "neither InfiniBand nor RoCE");
  ibv_context* const context = library.ibv_open_device(device);
  if (context == nullptr) return Status(Code::kNotSupported, lastError("it cannot be opened"));
  std::unique_ptr<VerbsDevice> opened(new VerbsDevice(library, context, name));
  if (const int error = library.ibv_query_device(context, &opened->limits_); error != 0)
    return Status::system(error, "ibv_query_device");
  PEERLANE_RETURN_IF_ERROR(opened->choosePort(filter, port));
  return opened;
}

// The first one that is active.
Status VerbsDevice::choosePort(const InterfaceFilter& filter, std::optional<uint8_t> wanted) {
  std::string states;
  if (wanted && *wanted > limits_.phys_port_cnt)
    return Status(Code::kNotSupported, "PEERLANE_IB_PORT is " + std::to_string(*wanted) +
                                           "; the device has " +
                                           portNumbers(limits_.phys_port_cnt));
  for (int number = 1; number <= limits_.phys_port_cnt; ++number) {
    const auto port = static_cast<uint8_t>(number);
    if ((wanted && port != *wanted) || !allows(filter, name_, port)) continue;
    ibv_port_attr state;
    if (const int error = queryPort(library_, context_, port, state); error != 0)
      return Status::system(error, "ibv_query_port");
    if (state.state == IBV_PORT_ACTIVE) {
      port_ = port;
      portState_ = state;
      return Status::ok();
    }
    states += (states.empty() ? "port " : ", port ") + std::to_string(port) + " is " +
              stateName(state.state);
  }
  if (!states.empty()) return Status(Code::kNotSupported, states);
  return Status(Code::kNotSupported, "PEERLANE_IB_HCA (" + filter.toText() + ") " +
                                         (filter.exclude ? "excludes its ports"
                                                         : "names nothing of it; it has " +
                                                               portNumbers(limits_.phys_port_cnt)));
}

Result<ibv_port_attr> VerbsDevice::stateOf(uint8_t number) const {
  ibv_port_attr state;
  if (const int error = queryPort(library_, context_, number, state); error != 0)
    return Status::system(error, name_ + ": ibv_query_port");
  return state;
}

VerbsDevice::~VerbsDevice() {
  (void)library_.ibv_close_device(context_);
}

Result<std::vector<Gid>> VerbsDevice::gids() const {
  std::vector<Gid> gids;
  if (library_._ibv_query_gid_table != nullptr) {
    // The table is that of all ports.
    std::vector<ibv_gid_entry> entries(
        static_cast<size_t>(portState_.gid_tbl_len) * limits_.phys_port_cnt + 1);
    const ssize_t count = library_._ibv_query_gid_table(context_, entries.data(), entries.size(), 0,
                                                        sizeof(ibv_gid_entry));
    if (count < 0)
      return Status::system(static_cast<int>(-count), name_ + ": the table of its addresses");
    for (ssize_t i = 0; i < count; ++i) {
      const ibv_gid_entry& entry = entries[static_cast<size_t>(i)];
      if (entry.port_num != port_) continue;
      Gid gid{
          .bytes = {}, .index = entry.gid_index, .kind = static_cast<Gid::Kind>(entry.gid_type)};
      std::memcpy(gid.bytes.data(), entry.gid.raw, gid.bytes.size());
      gids.push_back(gid);
    }
    return gids;
  }
  // An older library does not tell the kinds: those of RoCE v2 carry IPv4 addresses on every
  // driver of that time, and an InfiniBand port has no other kind than its own.
  for (int index = 0; index < portState_.gid_tbl_len; ++index) {
    ibv_gid raw;
    if (library_.ibv_query_gid(context_, port_, index, &raw) != 0) continue;
    Gid gid{.bytes = {}, .index = static_cast<uint32_t>(index)};
    std::memcpy(gid.bytes.data(), raw.raw, gid.bytes.size());
    if (gid.bytes == std::array<uint8_t, 16>{}) continue;
    if (isEthernet()) gid.kind = gid.isIpv4() ? Gid::Kind::kRoceV2 : Gid::Kind::kRoceV1;
    gids.push_back(gid);
  }
  return gids;
}

Result<uint16_t> VerbsDevice::pkeyIndex(uint16_t pkey) const {
  std::string there;
  for (int index = 0; index < portState_.pkey_tbl_len; ++index) {
    __be16 raw = 0;
    if (library_.ibv_query_pkey(context_, port_, index, &raw) != 0) continue;
    const uint16_t known = be16toh(raw);
    // The highest bit says whether the membership is full.
    if ((known & 0x7fff) == (pkey & 0x7fff)) return static_cast<uint16_t>(index);
    if (known != 0) there += (there.empty() ? "" : ", ") + std::to_string(known);
  }
  return Status(Code::kInvalidArgument, "PEERLANE_IB_PKEY is " + std::to_string(pkey) +
                                            ", which is no key of " + name_ + "; it has " + there);
}

}  // namespace peerlane::verbs
