// SPDX-License-Identifier: Apache-2.0
//
// RegistrationPaths: the ways by which a NIC may come to memory of each kind, by probe: as pages of
// this process, as a dma-buf that the memory's provider exports, or by the address of device memory
// for a kernel with a peer-memory module. The registration itself decides; each way that was
// refused has its reason. Immutable once made.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "peerlane/memory/region_table.h"
#include "peerlane/transport/verbs/protection_domain.h"

namespace peerlane {

class RegistrationPaths {
 public:
  explicit RegistrationPaths(std::shared_ptr<const ProtectionDomain> domain);

  // One registration, and the way that was taken.
  struct Made {
    DeviceMemory memory;
    std::string path;     // "pages", "dma-buf", "peer memory"
    std::string refused;  // "; "-separated, of ways that would be better; empty: none
  };
  // All of the region, with the rights that it grants. `address`: of its first byte for the device.
  // Errors: kOutOfMemory naming the limit of locked memory, kNotSupported with the reason of each
  // way, kRevoked.
  Result<Made> add(const RegionRecord& region, uint64_t address) const;

  // Device memory may be registered; the reason against it else.
  const Status& forDevices() const { return forDevices_; }
  // For people: each way of each kind of memory, the best first, and why it is not tried.
  std::vector<std::string> texts() const;

 private:
  struct Way {
    ExportForm form;
    Status probed;  // not OK: it is not tried
  };
  Result<DeviceMemory> addBy(ExportForm form, const RegionRecord& region, uint64_t address) const;

  const std::shared_ptr<const ProtectionDomain> domain_;
  std::vector<Way> forDevicesWays_;  // the best first
  Status forDevices_;
};

}  // namespace peerlane
