// SPDX-License-Identifier: Apache-2.0
#include "peerlane/memory/region_reference.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace peerlane {
namespace {

RegionReference sample() {
  RegionReference reference;
  for (size_t i = 0; i < 16; ++i) reference.owner[i] = static_cast<uint8_t>(0xa0 + i);
  reference.allocation = 0x1122334455667788;
  reference.generation = 0x99aabbccddeeff00;
  reference.bytes = 0x0000000123456789;
  reference.access = Access::kRemoteReadWrite;
  reference.device = {DeviceKind::kCuda, 7};
  reference.kind = MemoryKind::kCudaHandle;
  return reference;
}

// docs/wire.md, "Region reference", written out by hand.
constexpr std::array<uint8_t, 64> kGolden = {
    'P',  'L',  'R',  'R',                           // magic
    2,    3,    1,    0,                             // version, access, device kind, zero
    7,    0,    0,    0,    1,    2,    0,    0,     // device index; place, export, shape, zero
    0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7,  // owner
    0xa8, 0xa9, 0xaa, 0xab, 0xac, 0xad, 0xae, 0xaf,  //
    0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,  // allocation
    0x00, 0xff, 0xee, 0xdd, 0xcc, 0xbb, 0xaa, 0x99,  // generation
    0x89, 0x67, 0x45, 0x23, 0x01, 0x00, 0x00, 0x00,  // bytes
    0,    0,    0,    0,    0,    0,    0,    0};    // zero

TEST(RegionReference, HasTheGoldenBytes) {
  const RegionReference::Encoded encoded = sample().encode();
  for (size_t i = 0; i < encoded.size(); ++i)
    EXPECT_EQ(static_cast<uint8_t>(encoded[i]), kGolden[i]) << "byte " << i;
}

TEST(RegionReference, ReadsTheGoldenBytes) {
  const auto decoded = RegionReference::decode(std::as_bytes(std::span(kGolden)));
  ASSERT_TRUE(decoded.isOk()) << decoded.status().toString();
  const RegionReference expected = sample();
  EXPECT_EQ(decoded->owner, expected.owner);
  EXPECT_EQ(decoded->allocation, expected.allocation);
  EXPECT_EQ(decoded->generation, expected.generation);
  EXPECT_EQ(decoded->bytes, expected.bytes);
  EXPECT_EQ(decoded->access, expected.access);
  EXPECT_EQ(decoded->device, expected.device);
  EXPECT_EQ(decoded->kind, expected.kind);
}

TEST(RegionReference, DoesNotBelieveKindsThatItDoesNotKnow) {
  const std::pair<size_t, size_t> known[] = {
      {12, kMemoryPlaces}, {13, kMemoryExports}, {14, kMemoryShapes}};
  for (const auto& [at, count] : known)
    for (const size_t said : {count, count + 1, size_t{255}}) {
      RegionReference::Encoded encoded = sample().encode();
      encoded[at] = static_cast<std::byte>(said);
      EXPECT_FALSE(RegionReference::decode(encoded).value().kind) << at << " says " << said;
      encoded[at] = static_cast<std::byte>(count - 1);
      EXPECT_TRUE(RegionReference::decode(encoded).value().kind) << at;
    }
}

TEST(RegionReference, RefusesEveryOtherLength) {
  const RegionReference::Encoded encoded = sample().encode();
  std::vector<std::byte> longer(encoded.begin(), encoded.end());
  longer.resize(65);
  for (size_t length = 0; length <= longer.size(); ++length) {
    const auto decoded = RegionReference::decode(std::span(longer).first(length));
    EXPECT_EQ(decoded.isOk(), length == 64) << length;
    if (decoded.isOk()) continue;
    EXPECT_EQ(decoded.status().code(), Code::kCorrupt);
    EXPECT_NE(decoded.status().message().find(std::to_string(length)), std::string_view::npos);
  }
}

struct Wrong {
  const char* name;
  size_t offset;
  uint8_t value;
  const char* said;  // a part of the message
};

class RefusedReference : public testing::TestWithParam<Wrong> {};

TEST_P(RefusedReference, NamesWhatIsWrong) {
  RegionReference::Encoded encoded = sample().encode();
  encoded[GetParam().offset] = static_cast<std::byte>(GetParam().value);
  const auto decoded = RegionReference::decode(encoded);
  ASSERT_FALSE(decoded.isOk());
  EXPECT_EQ(decoded.status().code(), Code::kCorrupt);
  EXPECT_NE(decoded.status().message().find(GetParam().said), std::string_view::npos)
      << decoded.status().toString();
}

INSTANTIATE_TEST_SUITE_P(
    Fields, RefusedReference,
    testing::Values(Wrong{"magic first", 0, 'Q', "PLRR"}, Wrong{"magic last", 3, 'S', "PLRR"},
                    Wrong{"version 0", 4, 0, "version 0"}, Wrong{"version 1", 4, 1, "version 1"},
                    Wrong{"access", 5, 4, "access 4"}, Wrong{"access high", 5, 255, "access 255"},
                    Wrong{"device kind", 6, 2, "device kind 2"}));

}  // namespace
}  // namespace peerlane
