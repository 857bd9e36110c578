// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/verbs/pair_words.h"

#include "peerlane/core/wire.h"

namespace peerlane {
namespace {

constexpr uint32_t kMost24Bits = (1 << 24) - 1;

}  // namespace

std::vector<std::byte> encodePairWords(const PairWords& words) {
  std::vector<std::byte> bytes;
  ByteWriter writer(bytes);
  writer.u8(static_cast<uint8_t>(words.kind));
  writer.u32(words.round);
  writer.u8(words.taken ? 1 : 0);
  writer.u64(words.taken.value_or(0));
  writer.u8(static_cast<uint8_t>(words.pairs.size()));
  for (const PairWords::Pair& pair : words.pairs) {
    writer.u32(pair.number);
    writer.u32(pair.firstPacket);
  }
  PEERLANE_CHECK(writer.ok() && words.pairs.size() <= PairWords::kMostPairs);
  return bytes;
}

Result<PairWords> parsePairWords(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  PairWords words;
  const uint8_t kind = reader.u8();
  reader.require(kind < PairWords::kKinds, "no such kind");
  words.kind = static_cast<PairWords::Kind>(kind);
  words.round = reader.u32();
  const bool isTakenKnown = reader.u8() != 0;
  const uint64_t taken = reader.u64();
  if (isTakenKnown) words.taken = taken;
  const size_t count = reader.u8();
  reader.require(count <= PairWords::kMostPairs, "too many pairs");
  for (size_t i = 0; i < count && reader.ok(); ++i) {
    PairWords::Pair pair;
    pair.number = reader.u32();
    pair.firstPacket = reader.u32();
    reader.require(pair.number <= kMost24Bits && pair.firstPacket <= kMost24Bits,
                   "a number of more than 24 bits");
    words.pairs.push_back(pair);
  }
  reader.require(words.kind != PairWords::Kind::kAnew || count == 1, "a round without its pair");
  // Later versions append fields.
  PEERLANE_RETURN_IF_ERROR(reader.finish("words about queue pairs", Trailing::kAllow));
  return words;
}

}  // namespace peerlane
