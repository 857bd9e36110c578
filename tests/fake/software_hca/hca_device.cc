// SPDX-License-Identifier: Apache-2.0
#include "tests/fake/software_hca/hca_device.h"

#include <arpa/inet.h>
#include <endian.h>
#include <net/if.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

namespace peerlane::softhca {
namespace {

constexpr uint32_t kVendor = 0x5057, kPart = 1;
constexpr uint32_t kVendorOfRxe = 0xffffff;  // programs tell that device by it

bool isIn(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// IPv4 addresses are GIDs as addresses of IPv6 that map them.
ibv_gid toGid(std::string address, int number) {
  const size_t mark = address.find("%D");
  if (mark != std::string::npos) address.replace(mark, 2, std::to_string(number));
  ibv_gid gid = {};
  if (inet_pton(AF_INET6, address.c_str(), gid.raw) == 1) return gid;
  if (inet_pton(AF_INET, address.c_str(), gid.raw + 12) == 1) {
    gid.raw[10] = gid.raw[11] = 0xff;
    return gid;
  }
  fprintf(stderr, "software HCA: SOFTWARE_HCA_GIDS has '%s'; accepted: addresses of IPv4 and 6\n",
          address.c_str());
  abort();
}

void setText(char* to, size_t bytes, const std::string& text) {
  snprintf(to, bytes, "%s", text.c_str());
}

}  // namespace

Device::Device(const Settings& settings, const std::string& called, Fabric* fabric, int index)
    : ibv_device{},
      fabric_(fabric),
      index_(index),
      isInfiniband_(isIn(settings.infiniband, called)) {
  const bool isIwarp = isIn(settings.iwarp, called);
  node_type = isIwarp ? IBV_NODE_RNIC : IBV_NODE_CA;
  transport_type = isIwarp ? IBV_TRANSPORT_IWARP : IBV_TRANSPORT_IB;
  setText(name, sizeof name, called);
  setText(dev_name, sizeof dev_name, "uverbs" + std::to_string(index));
  const std::string folder = settings.fabric + "/sysfs/";
  setText(dev_path, sizeof dev_path, folder + "infiniband_verbs/" + dev_name);
  setText(ibdev_path, sizeof ibdev_path, folder + "infiniband/" + called);
  if (isInfiniband_) {
    gids_.push_back({toGid("fe80::5c4a:0:%D", index + 1), IBV_GID_TYPE_IB, 0});
    return;
  }
  for (const GidSetting& gid : settings.gids)
    gids_.push_back({toGid(gid.address, index + 1),
                     gid.isVersion2 ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_ROCE_V1,
                     if_nametoindex(gid.interface.c_str())});
}

std::vector<Device*> Device::all(const Settings& settings) {
  static auto* const known = new std::map<std::pair<Fabric*, std::string>, Device*>;
  static auto* const knowing = new Mutex;
  Fabric* fabric = Fabric::in(settings.fabric);
  std::vector<Device*> found;
  if (fabric == nullptr) return found;
  const MutexLock lock(*knowing);
  for (const std::string& name : settings.devices) {
    Device*& device = (*known)[{fabric, name}];
    if (device == nullptr) {
      const int index = fabric->findOrAddDevice(name);
      if (index < 0) continue;
      device = new Device(settings, name, fabric, index);
    }
    found.push_back(device);
  }
  return found;
}

uint64_t Device::guid() const {
  return htobe64(0x0250'57ff'fe00'0000 + static_cast<uint64_t>(index_) + 1);
}

void Device::describe(const Settings& settings, ibv_device_attr& attributes) const {
  const Limits& limits = settings.limits;
  attributes = {};
  setText(attributes.fw_ver, sizeof attributes.fw_ver, "1.0");
  attributes.node_guid = attributes.sys_image_guid = guid();
  attributes.max_mr_size = UINT64_MAX;
  attributes.page_size_cap = ~uint64_t{0xfff};
  const bool isRxe = settings.behaviour == Behaviour::kRxe || settings.onDemand == OnDemand::kRxe;
  attributes.vendor_id = isRxe ? kVendorOfRxe : kVendor;
  attributes.vendor_part_id = kPart;
  attributes.max_qp = static_cast<int>(limits.maxQueuePairs);
  attributes.max_qp_wr = static_cast<int>(limits.maxWork);
  attributes.device_cap_flags = IBV_DEVICE_PORT_ACTIVE_EVENT | IBV_DEVICE_SYS_IMAGE_GUID |
                                IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_SRQ_RESIZE;
  attributes.max_sge = attributes.max_sge_rd = attributes.max_srq_sge =
      static_cast<int>(limits.maxSge);
  attributes.max_cq = static_cast<int>(limits.maxCompletionQueues);
  attributes.max_cqe = static_cast<int>(limits.maxCompletions);
  attributes.max_mr = static_cast<int>(limits.maxRegions);
  attributes.max_pd = static_cast<int>(limits.maxDomains);
  attributes.max_qp_rd_atom = attributes.max_qp_init_rd_atom = static_cast<int>(limits.maxReads);
  attributes.max_res_rd_atom = static_cast<int>(limits.maxReads * limits.maxQueuePairs);
  attributes.atomic_cap = IBV_ATOMIC_HCA;
  attributes.max_srq = static_cast<int>(limits.maxShared);
  attributes.max_srq_wr = static_cast<int>(limits.maxWork);
  attributes.max_pkeys = 1;
  attributes.local_ca_ack_delay = 15;
  attributes.phys_port_cnt = static_cast<uint8_t>(limits.ports);
}

void Device::describePort(const Settings& settings, ibv_port_attr& attributes) const {
  attributes = {};
  attributes.state = static_cast<ibv_port_state>(record().portState.load());
  const bool isUp = attributes.state == IBV_PORT_ACTIVE;
  uint32_t code = IBV_MTU_256;
  for (uint32_t bytes = 256; bytes < settings.limits.mtu && code < IBV_MTU_4096; bytes *= 2) ++code;
  attributes.max_mtu = IBV_MTU_4096;
  attributes.active_mtu = static_cast<ibv_mtu>(code);
  attributes.gid_tbl_len = static_cast<int>(gids_.size());
  attributes.port_cap_flags = isInfiniband_ ? 0 : IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS;
  attributes.max_msg_sz = 1u << 31;
  attributes.pkey_tbl_len = 1;
  attributes.lid = lid();
  attributes.max_vl_num = 1;
  attributes.active_width = 2;    // 4 lanes
  attributes.active_speed = 128;  // of 100 Gbit/s
  attributes.phys_state = isUp ? 5 : 3;
  attributes.link_layer = isInfiniband_ ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET;
}

}  // namespace peerlane::softhca
