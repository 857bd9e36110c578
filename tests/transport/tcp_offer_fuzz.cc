// SPDX-License-Identifier: Apache-2.0
//
// The tcp offer and greeting: what parses can be written and parsed again to the same.
#include <algorithm>
#include <cstdint>
#include <span>

#include "peerlane/transport/tcp/tcp_offer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace peerlane;
  const std::span<const std::byte> input = std::as_bytes(std::span(bytes, size));
  if (const Result<TcpOffer> offer = parseTcpOffer(input)) {
    const Result<TcpOffer> again = parseTcpOffer(encodeTcpOffer(*offer));
    PEERLANE_CHECK(again.isOk() && again->port == offer->port);
    PEERLANE_CHECK(again->addresses == offer->addresses && again->token == offer->token);
    PEERLANE_CHECK(again->ciphers == offer->ciphers && again->sockets == offer->sockets);
  }
  TcpGreeting greeting{};
  std::copy_n(input.begin(), std::min(input.size(), greeting.size()), greeting.begin());
  if (const Result<TcpCard> card = parseTcpGreeting(greeting))
    PEERLANE_CHECK(encodeTcpGreeting(*card) == greeting);
  return 0;
}
