// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/shm/shm_offer.h"

#include <algorithm>

#include "peerlane/core/wire.h"

namespace peerlane {
namespace {

constexpr uint8_t kVersion = 1;

}  // namespace

std::vector<std::byte> ShmOffer::encode() const {
  std::vector<std::byte> blob;
  ByteWriter writer(blob);
  writer.u8(kVersion);
  writer.u64(nonceAddress);
  writer.raw(nonce);
  writer.u64(ringBytes);
  writer.u8(letsRead ? 1 : 0);
  return blob;
}

Result<ShmOffer> ShmOffer::decode(std::span<const std::byte> blob) {
  ByteReader reader(blob);
  ShmOffer offer;
  if (const uint8_t version = reader.u8(); version != kVersion)
    return Status(Code::kNotSupported, "shm offer of version " + std::to_string(version) +
                                           "; this library speaks " + std::to_string(kVersion));
  offer.nonceAddress = reader.u64();
  const auto nonce = reader.raw(kShmNonceBytes);
  std::copy(nonce.begin(), nonce.end(), offer.nonce.begin());
  offer.ringBytes = reader.u64();
  const uint8_t letsRead = reader.u8();
  offer.letsRead = letsRead != 0;
  // Newer minors may append.
  PEERLANE_RETURN_IF_ERROR(reader.finish("shm offer", Trailing::kAllow));
  if (offer.ringBytes != 0 && offer.ringBytes != kShmRingBytes)
    return Status(Code::kCorrupt, "shm offer with a ring of " + std::to_string(offer.ringBytes) +
                                      " bytes; expected " + std::to_string(kShmRingBytes));
  if (letsRead > 1)
    return Status(Code::kCorrupt, "shm offer that says " + std::to_string(letsRead) +
                                      " of reading; expected 0 or 1");
  return offer;
}

}  // namespace peerlane
