// SPDX-License-Identifier: Apache-2.0
//
// PairWords: what the two sides of a verbs link say to each other, over the authenticated control
// connection, to make queue pairs after the first one (PairRounds). Plain value and its byte
// format; docs/wire.md is the specification.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "peerlane/core/status.h"

namespace peerlane {

struct PairWords {
  enum class Kind : uint8_t {
    kAnew = 0,       // all pairs of this side have ended; one new one
    kMore = 1,       // further pairs, to share what is large. None: this side makes no more
    kAnewReady = 2,  // the new one is joined to the peer's
    kMoreReady = 3,  // they are
  };
  static constexpr uint8_t kKinds = 4;
  static constexpr size_t kMostPairs = 8;

  struct Pair {
    uint32_t number = 0;
    uint32_t firstPacket = 0;
  };

  Kind kind = Kind::kAnew;
  uint32_t round = 0;  // how often the pairs were made anew
  std::vector<Pair> pairs;
  std::optional<uint64_t> taken;  // with kAnew: news of the peer; null: not known
};

std::vector<std::byte> encodePairWords(const PairWords& words);
// Errors: kCorrupt.
Result<PairWords> parsePairWords(std::span<const std::byte> bytes);

}  // namespace peerlane
