// SPDX-License-Identifier: Apache-2.0
//
// Words about queue pairs: what parses can be written and parsed again to the same.
#include <cstdint>
#include <span>

#include "peerlane/transport/verbs/pair_words.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace peerlane;
  const std::span<const std::byte> input = std::as_bytes(std::span(bytes, size));
  const Result<PairWords> words = parsePairWords(input);
  if (!words) return 0;
  const std::vector<std::byte> written = encodePairWords(*words);
  PEERLANE_CHECK(written.size() <= input.size());
  const Result<PairWords> again = parsePairWords(written);
  PEERLANE_CHECK(again.isOk() && encodePairWords(*again) == written);
  PEERLANE_CHECK(again->round == words->round && again->taken == words->taken);
  PEERLANE_CHECK(again->pairs.size() <= PairWords::kMostPairs);
  return 0;
}
