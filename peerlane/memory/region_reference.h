// SPDX-License-Identifier: Apache-2.0
//
// RegionReference: a remote key: the bytes that name a region outside its process. Opaque, bounded
// (64 bytes), versioned; they may travel by any channel. They grant nothing by themselves: a peer
// needs an authenticated connection to the owner, and the owner checks allocation and generation
// when that peer first asks for the region. Plain value.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "peerlane/core/status.h"
#include "peerlane/memory/device.h"
#include "peerlane/memory/memory_kind.h"

namespace peerlane {

struct RegionReference {
  static constexpr size_t kEncodedBytes = 64;
  using Encoded = std::array<std::byte, kEncodedBytes>;

  // The context that registered the memory, and lends it where it is another one's.
  std::array<uint8_t, 16> owner{};
  uint64_t allocation = 0;
  uint64_t generation = 0;
  uint64_t bytes = 0;
  Access access = Access::kLocal;
  Device device;
  // How the owner's memory can be reached. Empty: a kind that a later version of the library added.
  // It is a hint for the choice of a link: the owner's answer to the import decides.
  std::optional<MemoryKind> kind{};

  Encoded encode() const;
  // kCorrupt naming the defect: length, magic, version, unknown enum values.
  static Result<RegionReference> decode(std::span<const std::byte> bytes);
};

}  // namespace peerlane
