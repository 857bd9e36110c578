// SPDX-License-Identifier: Apache-2.0
//
// Region: registered memory of this process, seen by its user. A cheap handle; copies name the same
// registration. Its destructor does not unregister: call Context::unregister, which returns once
// the memory may be freed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "peerlane/core/status.h"
#include "peerlane/memory/region_reference.h"

namespace peerlane {

struct RegionRecord;

class Region {
 public:
  Region() = default;
  Region(std::shared_ptr<RegionRecord> record, std::array<uint8_t, 16> owner)
      : record_(std::move(record)), owner_(owner) {}

  // An empty handle names no memory: nullptr, 0 bytes, number 0, no text.
  explicit operator bool() const { return record_ != nullptr; }
  // By which errors, the log and Context::dump() name it: "region 7", and at peers "region 7 of the
  // peer". No two registrations of one context have the same.
  uint64_t number() const;
  // Lifetime: memory that the caller registered: as the caller decides. Memory of
  // Context::allocate: until Context::unregister returned OK or, if it is never called, until the
  // context and the last handle are gone.
  std::byte* data() const;
  uint64_t bytes() const;
  Access access() const;
  Device device() const;
  // kRevoked: the provider of its memory took it back, or its program freed it; whatever is begun
  // with it ends with kRevoked. kClosed: it is being unregistered, or was. Else OK; for an empty
  // handle, too.
  Status status() const;
  // True when peers of the same host can map the memory. False: transfers use process_vm_* or
  // staging.
  bool isShared() const;
  // The kind of memory that backs it, for people.
  std::string description() const;

  // The region reference (a remote key): 64 bytes that name the region to a peer. They may travel
  // by any channel. For an empty handle all are 0, and Peer::importRegion refuses them.
  RegionReference::Encoded share() const;

  const std::shared_ptr<RegionRecord>& record() const { return record_; }
  // The id of the context that registered it.
  const std::array<uint8_t, 16>& owner() const { return owner_; }

 private:
  std::shared_ptr<RegionRecord> record_;
  std::array<uint8_t, 16> owner_{};
};

}  // namespace peerlane
