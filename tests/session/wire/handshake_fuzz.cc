// SPDX-License-Identifier: Apache-2.0
//
// Both roles of the handshake. First byte: bit 0 the role under test, bit 1 whether the bytes are a
// hello's fields to be authenticated with the right secret (else they are the wire as it is), bits
// 2 to 7 the size of a piece. Without the secret nothing completes; with it nothing crashes and the
// outcome is within its promises.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "peerlane/core/wire.h"
#include "peerlane/session/wire/handshake.h"

namespace {

using namespace peerlane;
using Role = Handshake::Role;

// The replayed seed "initiator_hello" was made with this secret, so that whole hellos are reached
// too.
Secret fixedSecret() {
  std::array<std::byte, Secret::kBytes> bytes;
  bytes.fill(std::byte{0x5a});
  return Secret(bytes);
}

std::array<std::byte, kHelloBytes> authenticated(Role role, std::span<const std::byte> fields,
                                                 std::span<const std::byte> transcript) {
  ByteReader reader(fields);
  internal::Hello hello;
  hello.role = role;
  hello.minor = reader.u16();
  hello.features = reader.u64();
  std::array<std::byte, ContextId::kBytes> context{};
  reader.rawInto(context);
  hello.context = ContextId(context);
  hello.hostIdentity = reader.u64();
  hello.processHint = reader.u32();
  reader.rawInto(hello.ephemeralPublic);
  return internal::encodeHello(hello, fixedSecret(), transcript);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  if (size == 0) return 0;
  const Role role = (bytes[0] & 1) != 0 ? Role::kInitiator : Role::kAcceptor;
  const bool sign = (bytes[0] & 2) != 0;
  const size_t piece = (bytes[0] >> 2) + size_t{1};
  HandshakeOptions options;
  options.secret = fixedSecret();
  options.keyId = keyIdOf(options.secret);
  options.self = ContextId(std::span<const std::byte, 16>(fixedSecret().bytes().first<16>()));
  options.features = 0xff;
  options.minor = 3;
  auto side = Handshake::create(role, options).value();
  std::span<const std::byte> wire = std::as_bytes(std::span(bytes + 1, size - 1));
  std::array<std::byte, kHelloBytes> hello;
  if (sign) {
    const auto transcript = side->start();
    hello = authenticated(role == Role::kInitiator ? Role::kAcceptor : Role::kInitiator, wire,
                          transcript);
    wire = hello;
  }
  while (!wire.empty()) {
    auto progress = side->feed(wire.first(std::min(piece, wire.size())));
    if (!progress.isOk()) {
      if (!side->rejection().empty() && side->rejection().size() != kRejectBytes) std::abort();
      if (side->feed({}).status().code() != progress.status().code()) std::abort();
      return 0;
    }
    wire = wire.subspan(progress->consumed);
    if (progress->done) {
      const PeerIdentity& peer = side->peer();
      if (peer.context.isNull() || peer.context == options.self || peer.minor > 3 ||
          peer.features > 0xff)
        std::abort();
      if (side->keys().send == side->keys().receive) std::abort();
      if (progress->send.size() != (role == Role::kAcceptor ? kHelloBytes : 0)) std::abort();
      return 0;
    }
    if (progress->consumed == 0) std::abort();  // it neither takes bytes nor ends
  }
  return 0;
}
