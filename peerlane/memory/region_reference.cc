// SPDX-License-Identifier: Apache-2.0
#include "peerlane/memory/region_reference.h"

#include <algorithm>
#include <string>
#include <vector>

#include "peerlane/core/wire.h"

namespace peerlane {
namespace {

// docs/wire.md, "Region reference".
constexpr uint32_t kMagic = 0x52'52'4c'50;  // "PLRR"
constexpr uint8_t kVersion = 2;
constexpr uint8_t kUnknown = 255;  // place, export or shape that the sender did not say

}  // namespace

RegionReference::Encoded RegionReference::encode() const {
  Encoded encoded{};
  ByteWriter writer{std::span<std::byte>(encoded)};
  writer.u32(kMagic);
  writer.u8(kVersion);
  writer.u8(static_cast<uint8_t>(access));
  writer.u8(static_cast<uint8_t>(device.kind));
  writer.u8(0);
  writer.u32(static_cast<uint32_t>(device.index));
  writer.u8(kind ? static_cast<uint8_t>(kind->place) : kUnknown);
  writer.u8(kind ? static_cast<uint8_t>(kind->exported) : kUnknown);
  writer.u8(kind ? static_cast<uint8_t>(kind->shape) : kUnknown);
  writer.u8(0);
  writer.raw(std::as_bytes(std::span(owner)));
  writer.u64(allocation);
  writer.u64(generation);
  writer.u64(this->bytes);
  writer.u64(0);
  PEERLANE_CHECK(writer.ok());
  return encoded;
}

Result<RegionReference> RegionReference::decode(std::span<const std::byte> encoded) {
  if (encoded.size() != kEncodedBytes)
    return Status(Code::kCorrupt, "region reference has " + std::to_string(encoded.size()) +
                                      " bytes; need " + std::to_string(kEncodedBytes));
  ByteReader reader(encoded);
  if (reader.u32() != kMagic)
    return Status(Code::kCorrupt, "region reference does not begin with \"PLRR\"");
  if (const uint8_t version = reader.u8(); version != kVersion)
    return Status(Code::kCorrupt, "region reference has version " + std::to_string(version) +
                                      "; this library reads version " + std::to_string(kVersion));
  const uint8_t access = reader.u8();
  const uint8_t device = reader.u8();
  reader.u8();
  if (access > 3 || device > 1)
    return Status(Code::kCorrupt, "region reference names access " + std::to_string(access) +
                                      " on device kind " + std::to_string(device) +
                                      "; known are 0 to 3 on kinds 0 and 1");
  RegionReference reference;
  reference.access = static_cast<Access>(access);
  reference.device = {static_cast<DeviceKind>(device), static_cast<int32_t>(reader.u32())};
  const uint8_t place = reader.u8();
  const uint8_t exported = reader.u8();
  const uint8_t shape = reader.u8();
  reference.kind = MemoryKind::of(place, exported, shape);
  reader.u8();
  const auto owner = reader.raw(16);
  std::transform(owner.begin(), owner.end(), reference.owner.begin(),
                 [](std::byte b) { return static_cast<uint8_t>(b); });
  reference.allocation = reader.u64();
  reference.generation = reader.u64();
  reference.bytes = reader.u64();
  reader.u64();
  PEERLANE_RETURN_IF_ERROR(reader.finish("region reference"));
  return reference;
}

}  // namespace peerlane
