// SPDX-License-Identifier: Apache-2.0
//
// VerbsSide: one context's worth of what links over a NIC share, on a software HCA of its own
// settings, made by hand so that a test knows the device's handles. When it ends, nothing that it
// made at the device may be left. One thread.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "peerlane/transport/verbs/device/verbs_nic.h"
#include "tests/fake/fake_regions.h"
#include "tests/transport/verbs/hca_control.h"

namespace peerlane {

// Settings of the software HCA, by name without SOFTWARE_HCA_.
using HcaSettings = std::map<std::string, std::string>;

class VerbsSide {
 public:
  explicit VerbsSide(const HcaSettings& settings = {},
                     const Config& ofContext = Config::fromEnvironment().value());
  // Requires: no link is left.
  ~VerbsSide();
  VerbsSide(const VerbsSide&) = delete;
  VerbsSide& operator=(const VerbsSide&) = delete;

  // Memory of this side, zeroed. `isHeld`: it is a region that the link finds for transfers of
  // this side; else it goes through slots.
  struct Memory {
    std::span<std::byte> bytes;
    RegionGrant grant;
    std::shared_ptr<RegionRecord> record;
    std::shared_ptr<std::byte> owner;  // the side is one, too
  };
  Memory memory(size_t bytes, bool isHeld = true, Access access = Access::kRemoteReadWrite);
  // Of memory that is the caller's.
  Memory region(std::span<std::byte> bytes, Access access, bool isHeld = true);

  // What the loop and the set of descriptors do in a turn.
  void turn();
  // A thread that sleeps on the descriptors would be woken.
  bool isWoken() const;

  ibv_context* device() const { return device_->handle(); }
  SoftwareHcaCounts counts() const;
  void resetCounts() const { HcaControl::get().reset_counts(device()); }
  int objects() const { return HcaControl::get().objects(device()); }
  void inject(SoftwareHcaFault fault, int64_t count, int error = 0, uint32_t pair = 0,
              uint64_t after = 0) const;
  // All slots are free.
  bool areSlotsFree() const;

  Config config;
  FakeRegions& regions() { return *regions_; }
  Bell& bell() { return *bell_; }
  ReadinessSet& readiness() { return *readiness_; }
  LinkSurroundings surroundings() { return {config, *loop_, *readiness_, *bell_, *regions_, {}}; }
  const std::shared_ptr<VerbsNic>& nic() const { return nic_; }

  // The pair that was made last at this side's device.
  ibv_qp* lastPair() const;
  // The registration of this memory, and of no more, with this side's device. Requires: there is
  // one, and no other.
  ibv_mr* keyOf(const Memory& memory) const;
  static std::shared_ptr<const verbs::VerbsDevice> open(const HcaSettings& settings);

 private:
  // What a peer was granted it may write until the device is closed.
  std::vector<std::shared_ptr<std::byte>> memories_;
  std::unique_ptr<FakeRegions> regions_ = std::make_unique<FakeRegions>();
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<ReadinessSet> readiness_;
  std::unique_ptr<Bell> bell_;
  std::shared_ptr<const verbs::VerbsDevice> device_;
  std::shared_ptr<VerbsNic> nic_;
};

}  // namespace peerlane
