// SPDX-License-Identifier: Apache-2.0
//
// Region: registered memory of this process, seen by its user. A cheap handle; copies name the same
// registration. It does not unregister when it goes away: Context::unregister says when the memory
// may be freed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "peerlane/memory/region_reference.h"

namespace peerlane {

struct RegionRecord;

class Region {
 public:
  Region() = default;
  Region(std::shared_ptr<RegionRecord> record, std::array<uint8_t, 16> owner)
      : record_(std::move(record)), owner_(owner) {}

  // An empty handle names no memory: nullptr, 0 bytes, no text.
  explicit operator bool() const { return record_ != nullptr; }
  // Lifetime: until Context::unregister returned OK.
  std::byte* data() const;
  uint64_t bytes() const;
  Access access() const;
  Device device() const;
  // True when peers of the same host can map the memory; false: process_vm_* or staging.
  bool isShared() const;
  // What backs it, for people.
  std::string description() const;

  // 64 bytes that name the region to a peer. They may travel by any channel. Of an empty handle all
  // are 0, and Peer::importRegion refuses them.
  RegionReference::Encoded share() const;

  const std::shared_ptr<RegionRecord>& record() const { return record_; }
  // The id of the context that registered it.
  const std::array<uint8_t, 16>& owner() const { return owner_; }

 private:
  std::shared_ptr<RegionRecord> record_;
  std::array<uint8_t, 16> owner_{};
};

}  // namespace peerlane
