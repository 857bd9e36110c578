// SPDX-License-Identifier: Apache-2.0
#include "peerlane/p2p/segment_name.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "peerlane/core/wire.h"

namespace peerlane::p2p {
namespace {

constexpr std::string_view kMagic = "PLSG";
constexpr uint8_t kVersion = 1;

Status corrupt(const std::string& why) {
  return Status(Code::kCorrupt, "the segment info " + why +
                                    "; pass the bytes that P2PRegisterHostMem or "
                                    "P2PRegisterDeviceMem filled in, all of them");
}

}  // namespace

void SegmentName::encode(std::span<char, kEncodedBytes> out) const {
  ByteWriter writer(std::as_writable_bytes(std::span<char>(out)));
  writer.raw(std::as_bytes(std::span(kMagic)));
  writer.u8(kVersion);
  writer.u8(static_cast<uint8_t>(access));
  writer.u8(static_cast<uint8_t>(kind));
  writer.u8(0);
  writer.raw(std::as_bytes(std::span(process)));
  writer.u64(number);
  writer.raw(std::as_bytes(std::span(key)));
  writer.u64(address);
  writer.u64(bytes);
  PEERLANE_CHECK(writer.ok() && writer.size() == kEncodedBytes);
}

Result<SegmentName> SegmentName::decode(std::span<const char, kEncodedBytes> bytes) {
  ByteReader reader(std::as_bytes(std::span<const char>(bytes)));
  const auto magic = reader.raw(kMagic.size());
  if (std::memcmp(magic.data(), kMagic.data(), kMagic.size()) != 0)
    return corrupt("was not made by this library");
  if (const int version = reader.u8(); version != kVersion)
    return corrupt("is of version " + std::to_string(version) + ", this library knows version 1");
  SegmentName name;
  const uint8_t access = reader.u8();
  const uint8_t kind = reader.u8();
  const uint8_t zero = reader.u8();
  const auto process = reader.raw(name.process.size());
  std::memcpy(name.process.data(), process.data(), process.size());
  name.number = reader.u64();
  const auto key = reader.raw(name.key.size());
  std::memcpy(name.key.data(), key.data(), key.size());
  name.address = reader.u64();
  name.bytes = reader.u64();
  if (access == 0 || access > static_cast<uint8_t>(Access::kRemoteReadWrite))
    return corrupt("is damaged (rights " + std::to_string(access) + ")");
  if (kind > static_cast<uint8_t>(DeviceKind::kCuda))
    return corrupt("is damaged (kind of memory " + std::to_string(kind) + ")");
  if (name.bytes == 0 || name.address > UINT64_MAX - name.bytes || zero != 0)
    return corrupt("is damaged (its range)");
  name.access = static_cast<Access>(access);
  name.kind = static_cast<DeviceKind>(kind);
  return name;
}

}  // namespace peerlane::p2p
