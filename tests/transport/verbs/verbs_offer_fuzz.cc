// SPDX-License-Identifier: Apache-2.0
//
// The offer of a verbs link: what parses can be written and parsed again to the same, and may be
// joined to itself without harm.
#include <algorithm>
#include <cstdint>
#include <span>

#include "peerlane/transport/verbs/device/verbs_offer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace peerlane;
  const std::span<const std::byte> input = std::as_bytes(std::span(bytes, size));
  const Result<VerbsOffer> offer = parseVerbsOffer(input);
  if (!offer) return 0;
  const std::vector<std::byte> written = encodeVerbsOffer(*offer);
  PEERLANE_CHECK(written.size() <= input.size());
  const Result<VerbsOffer> again = parseVerbsOffer(written);
  PEERLANE_CHECK(again.isOk() && encodeVerbsOffer(*again) == written);
  PEERLANE_CHECK(again->device == offer->device && again->pair == offer->pair);
  PEERLANE_CHECK(again->control == offer->control && again->gids.size() == offer->gids.size());
  const Result<GidPair> pair = agreeOnGids(*offer, *again);
  PEERLANE_CHECK(pair.isOk() == !offer->gids.empty());
  if (pair) PEERLANE_CHECK(pair->dialler.kind == pair->listener.kind);
  return 0;
}
