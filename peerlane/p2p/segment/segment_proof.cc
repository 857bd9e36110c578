// SPDX-License-Identifier: Apache-2.0
#include "peerlane/p2p/segment/segment_proof.h"

#include <sodium.h>

#include <string_view>
#include <vector>

#include "peerlane/core/wire.h"

namespace peerlane::p2p {
namespace {

// Part of each hash: one that was made for another purpose is never a proof.
constexpr std::string_view kPurpose = "peerlane 1 segment ask";
static_assert(sizeof(SegmentKey) >= crypto_generichash_KEYBYTES_MIN);

}  // namespace

SegmentProof makeProof(uint64_t number, const SegmentKey& key, const AskEnds& ends) {
  std::vector<std::byte> text;
  ByteWriter writer(text);
  writer.raw(std::as_bytes(std::span(kPurpose)));
  writer.raw(ends.asker.bytes());
  writer.raw(ends.owner.bytes());
  writer.u64(number);
  PEERLANE_CHECK(writer.ok());
  SegmentProof proof;
  PEERLANE_CHECK(crypto_generichash(reinterpret_cast<unsigned char*>(proof.data()), proof.size(),
                                    reinterpret_cast<const unsigned char*>(text.data()),
                                    text.size(), key.data(), key.size()) == 0);
  return proof;
}

bool isProof(const SegmentProof& proof, uint64_t number, const SegmentKey& key,
             const AskEnds& ends) {
  const SegmentProof expected = makeProof(number, key, ends);
  return sodium_memcmp(proof.data(), expected.data(), expected.size()) == 0;
}

}  // namespace peerlane::p2p
