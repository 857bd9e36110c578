// SPDX-License-Identifier: Apache-2.0
//
// Device: where memory lives. Access: which rights peers have on a region. Plain values.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

namespace peerlane {

enum class DeviceKind : uint8_t { kHost = 0, kCuda = 1 };

struct Device {
  DeviceKind kind = DeviceKind::kHost;
  int32_t index = 0;  // NUMA-agnostic host is host:0; GPUs count as their driver does

  friend auto operator<=>(const Device&, const Device&) = default;
  std::string toString() const {
    return (kind == DeviceKind::kHost ? "host:" : "cuda:") + std::to_string(index);
  }
};

// Rights of peers on a region. The owner itself may always do what the memory allows.
enum class Access : uint8_t { kLocal = 0, kRemoteRead = 1, kRemoteWrite = 2, kRemoteReadWrite = 3 };

// The side that enforces the rights on a region: its owner (by its descriptors, or because it
// copies itself), or only the library in the process that copies.
enum class Enforcer : uint8_t { kInitiator = 0, kOwner = 1 };

constexpr const char* enforcerName(Enforcer enforcer) {
  return enforcer == Enforcer::kOwner ? "owner" : "initiator";
}

constexpr bool allows(Access granted, Access wanted) {
  return (static_cast<uint8_t>(granted) & static_cast<uint8_t>(wanted)) ==
         static_cast<uint8_t>(wanted);
}

constexpr const char* accessName(Access access) {
  switch (access) {
    case Access::kLocal: return "local";
    case Access::kRemoteRead: return "remote read";
    case Access::kRemoteWrite: return "remote write";
    case Access::kRemoteReadWrite: return "remote read and write";
  }
  return "unknown access";
}

}  // namespace peerlane
