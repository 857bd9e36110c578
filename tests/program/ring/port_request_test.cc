// SPDX-License-Identifier: Apache-2.0
//
// The bits of a port's request: what one half holds, what takes two, and what no request can name.
#include "peerlane/program/ring/port_request.h"

#include <gtest/gtest.h>

#include <vector>

namespace peerlane::port {
namespace {

constexpr uint64_t top(uint32_t bits) {
  return (uint64_t{1} << bits) - 1;
}

// One field of a request, how many bits a half has for it, and how many a request has.
struct Field {
  const char* name;
  uint32_t shortBits;
  uint32_t longBits;
  void (*set)(PortRequest&, uint64_t);
  uint64_t (*get)(const PortRequest&);
};
constexpr Field kFields[] = {
    {"semaphore", 12, 20,
     [](PortRequest& r, uint64_t v) { r.semaphore = static_cast<uint32_t>(v); },
     [](const PortRequest& r) { return uint64_t{r.semaphore}; }},
    {"to", 8, 20, [](PortRequest& r, uint64_t v) { r.to = static_cast<uint32_t>(v); },
     [](const PortRequest& r) { return uint64_t{r.to}; }},
    {"from", 8, 20, [](PortRequest& r, uint64_t v) { r.from = static_cast<uint32_t>(v); },
     [](const PortRequest& r) { return uint64_t{r.from}; }},
    {"toOffset", 31, 48, [](PortRequest& r, uint64_t v) { r.toOffset = v; },
     [](const PortRequest& r) { return r.toOffset; }},
    {"fromOffset", 31, 48, [](PortRequest& r, uint64_t v) { r.fromOffset = v; },
     [](const PortRequest& r) { return r.fromOffset; }},
    {"bytes", 28, 48, [](PortRequest& r, uint64_t v) { r.bytes = v; },
     [](const PortRequest& r) { return r.bytes; }},
};

void expectSame(const PortRequest& back, const PortRequest& given) {
  EXPECT_EQ(back.verbs, given.verbs);
  EXPECT_EQ(back.value, given.value);
  for (const Field& field : kFields) EXPECT_EQ(field.get(back), field.get(given)) << field.name;
}

// It comes back as it was, and leaves the top bits to the queue.
void expectRoundTrip(const PortRequest& given, uint32_t halves) {
  ASSERT_TRUE(isEncodable(given));
  const EncodedRequest encoded = encode(given);
  EXPECT_EQ(encoded.count, halves);
  EXPECT_EQ(halvesOf(encoded.halves[0].first), halves);
  for (const WordPair& half : encoded.halves) EXPECT_EQ((half.first | half.second) & kLapBit, 0u);
  expectSame(decode(encoded.halves), given);
  // A stale second half must not matter to a short one.
  if (halves != 1) return;
  const WordPair noisy[2] = {encoded.halves[0], {~uint64_t{0}, ~uint64_t{0}}};
  expectSame(decode(noisy), given);
}

TEST(PortRequest, EveryFieldComesBackAtTheEdgesOfBothForms) {
  for (const Field& field : kFields) {
    SCOPED_TRACE(field.name);
    for (uint32_t bit = 0; bit <= field.longBits; ++bit) {
      for (const uint64_t value : {uint64_t{1} << bit >> 1, top(bit)}) {
        if (value > top(field.longBits)) continue;
        PortRequest request{.verbs = kPutVerb};
        field.set(request, value);
        expectRoundTrip(request, value > top(field.shortBits) ? 2 : 1);
      }
    }
  }
}

// Each field alone, so that bits of another one in its place would show.
TEST(PortRequest, FieldsDoNotTouchEachOther) {
  for (const uint32_t halves : {1u, 2u}) {
    for (const Field& field : kFields) {
      SCOPED_TRACE(field.name);
      PortRequest request{.verbs = halves == 1 ? 0u : 63u, .value = halves == 1 ? 1u : 0u};
      field.set(request, top(halves == 1 ? field.shortBits : field.longBits));
      expectRoundTrip(request, halves);
    }
    PortRequest all{.verbs = 63, .value = halves == 1 ? 1 : top(kValueBits)};
    for (const Field& field : kFields)
      field.set(all, top(halves == 1 ? field.shortBits : field.longBits));
    expectRoundTrip(all, halves);
  }
}

TEST(PortRequest, AnyVerbsFitOneHalfAndAnyOtherValueTakesTwo) {
  for (uint32_t verbs = 0; verbs < 64; ++verbs) {
    expectRoundTrip({.verbs = verbs}, 1);
    expectRoundTrip({.verbs = verbs, .value = 2}, 2);
  }
  for (uint32_t bit = 0; bit <= kValueBits; ++bit)
    expectRoundTrip({.verbs = kSignalVerb, .value = top(bit)}, bit == 1 ? 1 : 2);
  expectRoundTrip({.verbs = kSignalVerb, .value = uint64_t{1} << (kValueBits - 1)}, 2);
}

// Beyond what upstream's trigger has room for: 512 memories, 1024 semaphores, 4 GiB.
TEST(PortRequest, NamesFarMoreThanAHalfHolds) {
  expectRoundTrip({.verbs = kPutVerb, .semaphore = 5000, .to = 600, .from = 70000}, 2);
  expectRoundTrip({.verbs = kGetVerb,
                   .to = 1,
                   .from = 2,
                   .toOffset = uint64_t{5} << 30,
                   .fromOffset = uint64_t{200} << 40,
                   .bytes = uint64_t{6} << 30},
                  2);
}

TEST(PortRequest, WhatHasNoRoomIsNotEncodable) {
  EXPECT_TRUE(isEncodable({}));
  for (const Field& field : kFields) {
    SCOPED_TRACE(field.name);
    PortRequest request;
    field.set(request, top(field.longBits));
    EXPECT_TRUE(isEncodable(request));
    field.set(request, top(field.longBits) + 1);
    EXPECT_FALSE(isEncodable(request));
    EXPECT_FALSE(fitsOneHalf(request));
  }
  EXPECT_FALSE(isEncodable({.value = top(kValueBits) + 1}));
  EXPECT_FALSE(isEncodable({.verbs = 64}));
}

// Nothing of it is computed at run time only: kernels and hosts agree by construction.
TEST(PortRequest, IsAConstantExpression) {
  constexpr PortRequest kRequest{.verbs = kPutVerb | kSignalVerb, .semaphore = 9, .bytes = 1 << 20};
  constexpr EncodedRequest kEncoded = encode(kRequest);
  static_assert(kEncoded.count == 1);
  static_assert(decode(kEncoded.halves).bytes == 1 << 20);
  static_assert(encode({.value = 0}).count == 2);
}

}  // namespace
}  // namespace peerlane::port
