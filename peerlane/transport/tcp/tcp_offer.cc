// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/tcp/tcp_offer.h"

#include <sodium.h>

#include <string_view>

#include "peerlane/core/wire.h"

namespace peerlane {
namespace {

constexpr uint32_t kOfferMagic = 0x4f544c50;     // "PLTO" as it lies in memory
constexpr uint32_t kGreetingMagic = 0x47544c50;  // "PLTG"
constexpr uint16_t kOfferVersion = 2;
constexpr uint16_t kGreetingVersion = 1;

Status checkHead(ByteReader& reader, uint32_t magic, uint16_t accepted, const char* what) {
  reader.require(reader.u32() == magic, "wrong magic");
  const uint16_t version = reader.u16();
  PEERLANE_RETURN_IF_ERROR(reader.finish(what, Trailing::kAllow));
  if (version != accepted)
    return Status(Code::kNotSupported, std::string(what) + " has version " +
                                           std::to_string(version) + "; this build speaks " +
                                           std::to_string(accepted));
  return {};
}

}  // namespace

TcpToken makeTcpToken() {
  PEERLANE_CHECK(sodium_init() >= 0);  // without random numbers no token is safe
  TcpToken token;
  randombytes_buf(token.data(), token.size());
  return token;
}

bool sameToken(const TcpToken& a, const TcpToken& b) {
  return sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::vector<std::byte> encodeTcpOffer(const TcpOffer& offer) {
  std::vector<std::byte> bytes;
  ByteWriter writer(bytes);
  writer.u32(kOfferMagic);
  writer.u16(kOfferVersion);
  writer.u8(offer.ciphers);
  writer.u8(static_cast<uint8_t>(offer.sockets - 1));
  writer.raw(offer.token);
  writer.u16(offer.port);
  writer.u8(static_cast<uint8_t>(offer.addresses.size()));
  for (const std::string& address : offer.addresses)
    writer.string(address, TcpOffer::kMaxAddressBytes);
  PEERLANE_CHECK(writer.ok() && offer.addresses.size() <= TcpOffer::kMaxAddresses &&
                 offer.sockets >= 1 && offer.sockets <= kTcpMostSockets);
  return bytes;
}

Result<TcpOffer> parseTcpOffer(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  PEERLANE_RETURN_IF_ERROR(checkHead(reader, kOfferMagic, kOfferVersion, "tcp offer"));
  TcpOffer offer;
  offer.ciphers = reader.u8();
  offer.sockets = reader.u8() + 1u;
  reader.require(offer.sockets <= kTcpMostSockets, "too many sockets");
  reader.rawInto(offer.token);
  offer.port = reader.u16();
  const size_t count = reader.u8();
  reader.require(count <= TcpOffer::kMaxAddresses, "too many addresses");
  for (size_t i = 0; i < count && reader.ok(); ++i)
    offer.addresses.emplace_back(reader.string(TcpOffer::kMaxAddressBytes));
  // Later versions of the same format append fields.
  PEERLANE_RETURN_IF_ERROR(reader.finish("tcp offer", Trailing::kAllow));
  return offer;
}

TcpCard cardOf(const TcpToken& offered, uint16_t socket) {
  constexpr std::string_view kPurpose = "peerlane tcp socket";
  std::vector<std::byte> text;
  ByteWriter writer(text);
  writer.raw(std::as_bytes(std::span(kPurpose)));
  writer.u16(socket);
  TcpCard card{.token = {}, .socket = socket};
  const auto raw = [](const std::byte* bytes) {
    return reinterpret_cast<const unsigned char*>(bytes);
  };
  crypto_generichash(reinterpret_cast<unsigned char*>(card.token.data()), card.token.size(),
                     raw(text.data()), text.size(), raw(offered.data()), offered.size());
  return card;
}

bool sameCard(const TcpCard& a, const TcpCard& b) {
  return sameToken(a.token, b.token) && a.socket == b.socket;
}

TcpGreeting encodeTcpGreeting(const TcpCard& card) {
  TcpGreeting greeting;
  ByteWriter writer(greeting);
  writer.u32(kGreetingMagic);
  writer.u16(kGreetingVersion);
  writer.u16(card.socket);
  writer.raw(card.token);
  PEERLANE_CHECK(writer.ok() && writer.size() == kTcpGreetingBytes);
  return greeting;
}

Result<TcpCard> parseTcpGreeting(const TcpGreeting& greeting) {
  ByteReader reader(greeting);
  PEERLANE_RETURN_IF_ERROR(checkHead(reader, kGreetingMagic, kGreetingVersion, "tcp greeting"));
  TcpCard card;
  card.socket = reader.u16();
  reader.require(card.socket < kTcpMostSockets, "no link has so many sockets");
  reader.rawInto(card.token);
  PEERLANE_RETURN_IF_ERROR(reader.finish("tcp greeting"));
  return card;
}

}  // namespace peerlane
