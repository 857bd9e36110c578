// SPDX-License-Identifier: Apache-2.0
//
// The shm offer: what parses can be written and parsed again to the same.
#include <cstdint>
#include <span>

#include "peerlane/transport/shm/shm_offer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace peerlane;
  const auto offer = ShmOffer::decode(std::as_bytes(std::span(bytes, size)));
  if (!offer.isOk()) return 0;
  const auto again = ShmOffer::decode(offer->encode());
  PEERLANE_CHECK(again.isOk() && again->nonceAddress == offer->nonceAddress);
  PEERLANE_CHECK(again->nonce == offer->nonce && again->ringBytes == offer->ringBytes);
  PEERLANE_CHECK(again->letsRead == offer->letsRead);
  return 0;
}
