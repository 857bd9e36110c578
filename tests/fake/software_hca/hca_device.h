// SPDX-License-Identifier: Apache-2.0
//
// A device of the software HCA as ibv_get_device_list() shows it: what it is called, what it can,
// which GIDs its ports have. They are alike, and go up and down together. Devices of one name are
// the same device in all processes that share a fabric. Not an opened device (hca_context.h). Any
// thread; nothing here changes but the record in the fabric.
#pragma once

#include <infiniband/verbs.h>

#include <memory>
#include <vector>

#include "tests/fake/software_hca/hca_fabric.h"
#include "tests/fake/software_hca/hca_settings.h"

namespace peerlane::softhca {

struct Gid {
  ibv_gid gid;
  ibv_gid_type type;
  uint32_t interface;  // its index
};

class Device : public ibv_device {
 public:
  // All that the settings name. Leaked, one for each name: contexts and lists keep pointers.
  static std::vector<Device*> all(const Settings& settings);
  static Device& of(ibv_device* device) { return *static_cast<Device*>(device); }

  int index() const { return index_; }  // in the fabric
  Fabric& fabric() const { return *fabric_; }
  DeviceRecord& record() const { return fabric_->device(index_); }
  uint64_t guid() const;  // network order
  const std::vector<Gid>& gids() const { return gids_; }
  bool isInfiniband() const { return isInfiniband_; }
  uint16_t lid() const { return isInfiniband_ ? static_cast<uint16_t>(index_ + 1) : 0; }

  void describe(const Settings& settings, ibv_device_attr& attributes) const;
  void describePort(const Settings& settings, ibv_port_attr& attributes) const;

 private:
  Device(const Settings& settings, const std::string& called, Fabric* fabric, int index);

  Fabric* const fabric_;
  const int index_;
  const bool isInfiniband_;
  std::vector<Gid> gids_;
};

inline constexpr uint16_t kPkey = 0xffff;  // the only one: full member of the default partition

}  // namespace peerlane::softhca
