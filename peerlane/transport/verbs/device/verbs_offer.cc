// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/verbs/device/verbs_offer.h"

#include <algorithm>

#include "peerlane/core/wire.h"

namespace peerlane {
namespace {

using verbs::Gid;

constexpr uint32_t kMagic = 0x4f564c50;  // "PLVO" as it lies in memory
constexpr uint16_t kVersion = 1;
constexpr uint32_t kMost24Bits = (1 << 24) - 1;
constexpr uint8_t kEthernet = 1;
constexpr uint8_t kAdds = 2;
constexpr uint8_t kOrdersWrites = 4;
constexpr uint8_t kMailsWords = 8;

std::string textOf(const std::vector<Gid>& gids) {
  std::string text;
  for (const Gid& gid : gids) text += (text.empty() ? "" : ", ") + gid.text();
  return text.empty() ? "none" : text;
}

// How well two addresses suit each other; 0: not at all. RoCE v2 is routed, and an address of the
// same network needs no route.
int fitOf(const Gid& a, const Gid& b) {
  if (a.kind != b.kind || a.isIpv4() != b.isIpv4() || a.isLinkLocal() != b.isLinkLocal()) return 0;
  constexpr size_t kIpv4 = 12;  // the first byte of the IPv4 address
  const size_t network = a.isIpv4() ? kIpv4 + 3 : 8;
  const bool sameNetwork = std::equal(a.bytes.begin(), a.bytes.begin() + network, b.bytes.begin());
  return 1 + (sameNetwork ? 4 : 0) + (a.isLinkLocal() ? 0 : 2) +
         (a.kind == Gid::Kind::kRoceV1 ? 0 : 8);
}

}  // namespace

std::vector<std::byte> encodeVerbsOffer(const VerbsOffer& offer) {
  std::vector<std::byte> bytes;
  ByteWriter writer(bytes);
  writer.u32(kMagic);
  writer.u16(kVersion);
  writer.u8(static_cast<uint8_t>((offer.isEthernet ? kEthernet : 0) | (offer.adds ? kAdds : 0) |
                                 (offer.ordersWrites ? kOrdersWrites : 0) |
                                 (offer.mailsWords ? kMailsWords : 0)));
  writer.u8(offer.mtu);
  writer.u8(offer.mostReads);
  writer.u16(offer.lid);
  writer.u32(offer.pair);
  writer.u32(offer.firstPacket);
  writer.u32(offer.receives);
  writer.u64(offer.control);
  writer.u32(offer.controlKey);
  writer.string(offer.device, VerbsOffer::kMostNameBytes);
  writer.u8(static_cast<uint8_t>(offer.gids.size()));
  for (const Gid& gid : offer.gids) {
    writer.u8(static_cast<uint8_t>(gid.kind));
    writer.raw(std::as_bytes(std::span(gid.bytes)));
  }
  if (offer.pairs != 0) writer.u8(offer.pairs);
  PEERLANE_CHECK(writer.ok() && offer.gids.size() <= VerbsOffer::kMostGids);
  return bytes;
}

Result<VerbsOffer> parseVerbsOffer(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  reader.require(reader.u32() == kMagic, "wrong magic");
  const uint16_t version = reader.u16();
  PEERLANE_RETURN_IF_ERROR(reader.finish("verbs offer", Trailing::kAllow));
  if (version != kVersion)
    return Status(Code::kNotSupported, "verbs offer has version " + std::to_string(version) +
                                           "; this build speaks " + std::to_string(kVersion));
  VerbsOffer offer;
  const uint8_t flags = reader.u8();
  offer.isEthernet = (flags & kEthernet) != 0;
  offer.adds = (flags & kAdds) != 0;
  offer.ordersWrites = (flags & kOrdersWrites) != 0;
  offer.mailsWords = (flags & kMailsWords) != 0;
  offer.mtu = reader.u8();
  reader.require(offer.mtu >= IBV_MTU_256 && offer.mtu <= IBV_MTU_4096, "no such packet size");
  offer.mostReads = reader.u8();
  reader.require(offer.mostReads != 0, "no reads at a time");
  offer.lid = reader.u16();
  offer.pair = reader.u32();
  offer.firstPacket = reader.u32();
  reader.require(offer.pair <= kMost24Bits && offer.firstPacket <= kMost24Bits,
                 "a number of more than 24 bits");
  offer.receives = reader.u32();
  offer.control = reader.u64();
  offer.controlKey = reader.u32();
  offer.device = reader.string(VerbsOffer::kMostNameBytes);
  const size_t count = reader.u8();
  reader.require(count <= VerbsOffer::kMostGids, "too many addresses");
  for (size_t i = 0; i < count && reader.ok(); ++i) {
    Gid gid;
    const uint8_t kind = reader.u8();
    reader.require(kind <= static_cast<uint8_t>(Gid::Kind::kRoceV2), "no such kind of address");
    gid.kind = static_cast<Gid::Kind>(kind);
    reader.rawInto(std::as_writable_bytes(std::span(gid.bytes)));
    offer.gids.push_back(gid);
  }
  // Versions of the same format append fields.
  if (reader.ok() && reader.remaining() != 0) offer.pairs = reader.u8();
  PEERLANE_RETURN_IF_ERROR(reader.finish("verbs offer", Trailing::kAllow));
  return offer;
}

Result<GidPair> agreeOnGids(const VerbsOffer& dialler, const VerbsOffer& listener) {
  if (dialler.isEthernet != listener.isEthernet)
    return Status(Code::kNotSupported, "one side has an InfiniBand port (" +
                                           (dialler.isEthernet ? listener : dialler).device +
                                           "), the other a RoCE port (" +
                                           (dialler.isEthernet ? dialler : listener).device +
                                           "); PEERLANE_IB_HCA chooses another");
  GidPair best;
  int fit = 0;
  for (const Gid& a : dialler.gids)
    for (const Gid& b : listener.gids)
      if (const int each = fitOf(a, b); each > fit) {
        fit = each;
        best = {a, b};
      }
  if (fit == 0)
    return Status(Code::kNotSupported, "no address of " + dialler.device + " reaches one of " +
                                           listener.device + ": the side that connected has " +
                                           textOf(dialler.gids) + ", the side that listened " +
                                           textOf(listener.gids) +
                                           "; PEERLANE_IB_HCA and PEERLANE_IB_GID_INDEX choose "
                                           "others");
  return best;
}

}  // namespace peerlane
