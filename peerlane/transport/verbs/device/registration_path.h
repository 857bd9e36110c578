// SPDX-License-Identifier: Apache-2.0
//
// RegistrationPaths: the ways by which a NIC may come to memory of each kind, by probe and by
// PEERLANE_IB_REGISTER: memory of the host as pinned pages of this process or on demand, device
// memory as a dma-buf that its provider exports, or by its address for a kernel with a peer-memory
// module. The registration itself decides; each way that was refused has its reason. Immutable once
// made.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "peerlane/core/config.h"
#include "peerlane/memory/region_table.h"
#include "peerlane/os/verbs/registration_probe.h"
#include "peerlane/transport/verbs/device/device_writes.h"
#include "peerlane/transport/verbs/device/protection_domain.h"

namespace peerlane {

class RegistrationPaths {
 public:
  // Of the settings it takes `ibRegister` and `ibCacheBytes`. `writes` outlives it.
  RegistrationPaths(std::shared_ptr<const ProtectionDomain> domain, const Config& config,
                    const DeviceWrites& writes);

  // One registration, and the way that was taken.
  struct Made {
    DeviceMemory memory;
    uint64_t address = 0;  // of the first byte, for the device
    std::string path;      // "pages", "on demand", "dma-buf", "peer memory"
    std::string refused;   // "; "-separated, of ways that would be better; empty: none
    // Requests begin at multiples of it and have whole ones; a power of two. At most one packet.
    uint64_t unit = 1;
    // Peers may get its key. Errors: kNotSupported (their requests would go wrong; addPages()).
    Status forPeers{};
  };
  // All of the region, with the rights that it grants. On demand only where pages cannot be locked,
  // or are not wanted. Errors: kOutOfMemory naming the limit of locked memory, kNotSupported with
  // the reason of each way, kRevoked.
  Result<Made> add(const RegionRecord& region) const;
  // The same of host memory that the program may free without a word (Context::regionOf): as pages
  // where its frees are watched (RegionFrees) from here on; else on demand, because then the kernel
  // tells the device. Errors: kNotSupported with the reason of each way, kOutOfMemory, kRevoked.
  Result<Made> addFleeting(const RegionRecord& region) const;
  // As pages, whatever the setting: for peers, where add() made nothing that they may use. Errors:
  // kOutOfMemory naming the limit, kSystem, kRevoked.
  Result<Made> addPages(const RegionRecord& region) const;

  // Device memory may be registered; the reason against it else.
  const Status& forDevices() const { return forDevices_; }
  // The same for memory of addFleeting() that this side uses (it may be that it is registered for
  // peers only), and for host memory that is not granted to peers.
  const Status& forFleeting() const { return forFleeting_; }
  const Status& forUngranted() const { return forUngranted_; }
  // For people: each way of each kind of memory, the best first, and why it is not tried.
  std::vector<std::string> texts() const;

 private:
  enum class Path : uint8_t { kPages, kOnDemand, kDmaBuf, kPeerMemory };
  struct Way {
    Path path;
    Status probed;  // not OK: it is not tried
  };
  static const char* nameOf(Path path);
  void probeHost(IbRegister wanted);
  void probeFleeting(const Config& config);
  void probeDevices(IbRegister wanted);
  Result<Made> addByFirst(const std::vector<Way>& ways, const RegionRecord& region,
                          bool isFleeting) const;
  uint64_t addressOf(Path path, const RegionRecord& region) const;
  Result<DeviceMemory> addBy(Path path, const RegionRecord& region) const;
  Made made(Path path, const RegionRecord& region, DeviceMemory memory, std::string refused) const;

  const std::shared_ptr<const ProtectionDomain> domain_;
  const DeviceWrites& writes_;
  verbs::OnDemandPaging onDemand_;
  std::vector<Way> forHostWays_;  // the best first
  std::vector<Way> forFleetingWays_;
  std::vector<Way> forDevicesWays_;
  Status forDevices_;
  Status forFleeting_;
  Status forUngranted_;
};

}  // namespace peerlane
