// SPDX-License-Identifier: Apache-2.0
#include "peerlane/p2p/segment/segment_name.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

#include "peerlane/core/wire.h"

namespace peerlane::p2p {
namespace {

constexpr uint8_t kMark = 0xd0;  // the upper four bits; the lower four are the version
constexpr uint8_t kVersion = 3;
constexpr uint8_t kRights = 3;
constexpr uint8_t kIsCuda = 16;
constexpr size_t kChecksumAt = 2;
constexpr int kByteBits = 48;  // of the last word; its upper bits are those of the number
constexpr uint64_t kLowerNumber = UINT32_MAX;

Status corrupt(const std::string& why) {
  return Status(Code::kCorrupt, "the segment info " + why +
                                    "; pass the bytes that P2PRegisterHostMem or "
                                    "P2PRegisterDeviceMem filled in, all of them");
}

// Finds every accidental change within two bytes. The key is what guards against malice.
uint16_t checksumOf(std::span<const char, SegmentName::kEncodedBytes> bytes) {
  uint32_t sum = 0xffff;
  for (size_t at = 0; at < bytes.size(); ++at) {
    if (at == kChecksumAt || at == kChecksumAt + 1) continue;
    sum ^= static_cast<uint32_t>(static_cast<uint8_t>(bytes[at])) << 8;
    for (int bit = 0; bit < 8; ++bit)
      sum = (sum & 0x8000) != 0 ? (sum << 1 ^ 0x1021) & 0xffff : sum << 1;
  }
  return static_cast<uint16_t>(sum);
}

}  // namespace

void SegmentName::encode(std::span<char, kEncodedBytes> out) const {
  ByteWriter writer(std::as_writable_bytes(std::span<char>(out)));
  PEERLANE_CHECK(bytes <= kMostBytes && number <= kMostNumber);
  writer.u8(kMark | kVersion);
  writer.u8(static_cast<uint8_t>(static_cast<uint8_t>(access) |
                                 (kind == DeviceKind::kCuda ? kIsCuda : 0)));
  writer.u16(0);  // the checksum, below
  writer.u32(static_cast<uint32_t>(number & kLowerNumber));
  writer.raw(std::as_bytes(std::span(process)));
  writer.raw(std::as_bytes(std::span(key)));
  writer.u64(address);
  writer.u64(bytes | number >> 32 << kByteBits);
  PEERLANE_CHECK(writer.ok() && writer.size() == kEncodedBytes);
  ByteWriter checksum(std::as_writable_bytes(out.subspan<kChecksumAt, sizeof(uint16_t)>()));
  checksum.u16(checksumOf(out));
}

Result<SegmentName> SegmentName::decode(std::span<const char, kEncodedBytes> bytes) {
  ByteReader reader(std::as_bytes(std::span<const char>(bytes)));
  const uint8_t first = reader.u8();
  if ((first & 0xf0) != kMark) return corrupt("was not made by this library");
  if (const int version = first & 0x0f; version != kVersion)
    return corrupt("is of version " + std::to_string(version) + ", this library knows version " +
                   std::to_string(kVersion));
  SegmentName name;
  const uint8_t flags = reader.u8();
  if (reader.u16() != checksumOf(bytes)) return corrupt("is damaged (its checksum)");
  name.number = reader.u32();
  const auto process = reader.raw(name.process.size());
  std::memcpy(name.process.data(), process.data(), process.size());
  const auto key = reader.raw(name.key.size());
  std::memcpy(name.key.data(), key.data(), key.size());
  name.address = reader.u64();
  const uint64_t last = reader.u64();
  name.bytes = last & kMostBytes;
  name.number |= last >> kByteBits << 32;
  if ((flags & kRights) == 0 || (flags & ~(kRights | kIsCuda)) != 0)
    return corrupt("is damaged (rights " + std::to_string(flags) + ")");
  if (name.bytes == 0 || name.address > UINT64_MAX - name.bytes)
    return corrupt("is damaged (its range)");
  name.access = static_cast<Access>(flags & kRights);
  name.kind = (flags & kIsCuda) != 0 ? DeviceKind::kCuda : DeviceKind::kHost;
  return name;
}

std::string rangeText(uint64_t address, uint64_t bytes) {
  char text[64];
  (void)std::snprintf(text, sizeof text, "[0x%llx, +%llu)",
                      static_cast<unsigned long long>(address),
                      static_cast<unsigned long long>(bytes));
  return text;
}

}  // namespace peerlane::p2p
