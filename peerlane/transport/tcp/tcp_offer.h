// SPDX-License-Identifier: Apache-2.0
//
// The messages of the two sides of a tcp link before its first frame: the offer (through the
// authenticated control connection) and the greeting (the first bytes on a data socket, both
// ways). Plain values and their byte formats; docs/wire.md, section Frames, is the specification.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "peerlane/core/status.h"

namespace peerlane {

inline constexpr size_t kTcpTokenBytes = 32;
inline constexpr uint32_t kTcpMostSockets = 8;  // of a link
using TcpToken = std::array<std::byte, kTcpTokenBytes>;

// From the system's generator; good for one link.
TcpToken makeTcpToken();
// Compares in constant time.
bool sameToken(const TcpToken& a, const TcpToken& b);

struct TcpOffer {
  static constexpr size_t kMaxAddresses = 8;
  static constexpr uint32_t kMaxAddressBytes = 64;

  TcpToken token{};      // of which the other side shows what follows (cardOf) on each data socket
  uint16_t port = 0;     // of a listener; 0: this side dials
  uint8_t ciphers = 0;   // this side encrypts, with one of these (aead.h); 0: it does not
  uint32_t sockets = 1;  // the most that this side wants; the smaller number of the two counts
  std::vector<std::string> addresses;  // where that listener is reached, without port
};

std::vector<std::byte> encodeTcpOffer(const TcpOffer& offer);
// Errors: kCorrupt (not an offer), kNotSupported (another version, naming both).
Result<TcpOffer> parseTcpOffer(std::span<const std::byte> bytes);

inline constexpr size_t kTcpGreetingBytes = 40;
using TcpGreeting = std::array<std::byte, kTcpGreetingBytes>;

// Shows that one knows the token that the other side gave out. Each socket shows another one, from
// which none of the others follows: one that was seen on the wire is used up.
struct TcpCard {
  TcpToken token{};
  uint16_t socket = 0;  // which of the link's
};
TcpCard cardOf(const TcpToken& offered, uint16_t socket);
// Compares in constant time.
bool sameCard(const TcpCard& a, const TcpCard& b);
TcpGreeting encodeTcpGreeting(const TcpCard& card);
// Errors: kCorrupt, kNotSupported as above.
Result<TcpCard> parseTcpGreeting(const TcpGreeting& greeting);

}  // namespace peerlane
