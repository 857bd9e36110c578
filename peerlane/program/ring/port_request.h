// SPDX-License-Identifier: Apache-2.0
//
// PortRequest: the request of a kernel's thread to the proxy of its port channel, and its encoding
// as one or two halves of 128 bits. A small request fits one half; a request with a value too large
// for its field takes two, so no value is cut. The top bit of each word is left for the queue
// (progress/fifo_device.h). The bit map is private to one process: both ends are of one
// build. Any thread; there is no state.
//
//   short, word 0   62 0 | 61..56 verbs | 55..44 semaphore | 43..36 to | 35..28 from | 27..0 bytes
//          word 1   61..31 offset at the destination | 30..0 offset at the source; adds 1
//   long,  word 0   62 1 | 61..56 verbs | 55..36 semaphore | 35..16 to | 15..0 value, bits 0..15
//          word 1   62..15 bytes | 14..0 from, bits 0..14
//          word 2   62..15 offset at the destination | 14..10 from, bits 15..19 | 9..0
//          value, 16..25 word 3   62..15 offset at the source | 14..0 value, bits 26..40
#pragma once

#include <cstdint>

#include "peerlane/core/device_code.h"
#include "peerlane/program/words/shared_word.h"

namespace peerlane::port {

enum PortVerb : uint32_t {
  kPutVerb = 1,      // from local memory to a peer's
  kGetVerb = 2,      // from a peer's memory to local memory
  kSignalVerb = 4,   // then add `value` to the peer's semaphore
  kFlushVerb = 8,    // then report at once that all requests of this semaphore are done
  kCustomVerb = 16,  // a request of the program: `semaphore` is its kind, the rest are operands
  kWakeVerb = 32,    // asks for a launch of the resident port, which was shut
};

struct PortRequest {
  uint32_t verbs = 0;      // of PortVerb
  uint32_t semaphore = 0;  // 20 bits, as the next two
  uint32_t to = 0;         // memory
  uint32_t from = 0;
  uint64_t toOffset = 0;  // 48 bits, as the next two
  uint64_t fromOffset = 0;
  uint64_t bytes = 0;
  uint64_t value = 1;  // 41 bits
};

inline constexpr uint32_t kIdBits = 20;
inline constexpr uint32_t kSizeBits = 48;
inline constexpr uint32_t kValueBits = 41;
inline constexpr uint32_t kMostHalves = 2;
inline constexpr uint64_t kLapBit = uint64_t{1} << 63;

struct EncodedRequest {
  WordPair halves[kMostHalves];
  uint32_t count = 1;
};

namespace detail {
inline constexpr uint64_t kLongBit = uint64_t{1} << 62;
PEERLANE_DEVICE constexpr uint64_t bits(uint64_t word, uint32_t lowest, uint32_t count) {
  return word >> lowest & ((uint64_t{1} << count) - 1);
}
PEERLANE_DEVICE constexpr bool fits(uint64_t value, uint32_t count) {
  return value >> count == 0;
}
}  // namespace detail

PEERLANE_DEVICE constexpr bool isEncodable(const PortRequest& r) {
  using detail::fits;
  return fits(r.semaphore, kIdBits) && fits(r.to, kIdBits) && fits(r.from, kIdBits) &&
         fits(r.toOffset, kSizeBits) && fits(r.fromOffset, kSizeBits) && fits(r.bytes, kSizeBits) &&
         fits(r.value, kValueBits) && fits(r.verbs, 6);
}

PEERLANE_DEVICE constexpr bool fitsOneHalf(const PortRequest& r) {
  using detail::fits;
  return r.value == 1 && fits(r.semaphore, 12) && fits(r.to, 8) && fits(r.from, 8) &&
         fits(r.bytes, 28) && fits(r.toOffset, 31) && fits(r.fromOffset, 31);
}

// Requires: isEncodable().
PEERLANE_DEVICE constexpr EncodedRequest encode(const PortRequest& r) {
  EncodedRequest e{};
  const uint64_t verbs = uint64_t{r.verbs} << 56;
  if (fitsOneHalf(r)) {
    e.count = 1;
    e.halves[0] = {verbs | uint64_t{r.semaphore} << 44 | uint64_t{r.to} << 36 |
                       uint64_t{r.from} << 28 | r.bytes,
                   r.toOffset << 31 | r.fromOffset};
    return e;
  }
  using detail::bits;
  e.count = 2;
  e.halves[0] = {detail::kLongBit | verbs | uint64_t{r.semaphore} << 36 | uint64_t{r.to} << 16 |
                     bits(r.value, 0, 16),
                 r.bytes << 15 | bits(r.from, 0, 15)};
  e.halves[1] = {r.toOffset << 15 | bits(r.from, 15, 5) << 10 | bits(r.value, 16, 10),
                 r.fromOffset << 15 | bits(r.value, 26, 15)};
  return e;
}

PEERLANE_DEVICE constexpr uint32_t halvesOf(uint64_t firstWord) {
  return (firstWord & detail::kLongBit) != 0 ? 2 : 1;
}

// `halves`: halvesOf() the first word.
PEERLANE_DEVICE constexpr PortRequest decode(const WordPair* halves) {
  using detail::bits;
  const uint64_t w0 = halves[0].first, w1 = halves[0].second;
  PortRequest r;
  r.verbs = static_cast<uint32_t>(bits(w0, 56, 6));
  if (halvesOf(w0) == 1) {
    r.semaphore = static_cast<uint32_t>(bits(w0, 44, 12));
    r.to = static_cast<uint32_t>(bits(w0, 36, 8));
    r.from = static_cast<uint32_t>(bits(w0, 28, 8));
    r.bytes = bits(w0, 0, 28);
    r.toOffset = bits(w1, 31, 31);
    r.fromOffset = bits(w1, 0, 31);
    r.value = 1;
    return r;
  }
  const uint64_t w2 = halves[1].first, w3 = halves[1].second;
  r.semaphore = static_cast<uint32_t>(bits(w0, 36, 20));
  r.to = static_cast<uint32_t>(bits(w0, 16, 20));
  r.from = static_cast<uint32_t>(bits(w1, 0, 15) | bits(w2, 10, 5) << 15);
  r.bytes = bits(w1, 15, 48);
  r.toOffset = bits(w2, 15, 48);
  r.fromOffset = bits(w3, 15, 48);
  r.value = bits(w0, 0, 16) | bits(w2, 0, 10) << 16 | bits(w3, 0, 15) << 26;
  return r;
}

}  // namespace peerlane::port
