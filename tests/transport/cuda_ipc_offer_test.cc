// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/cuda_ipc/cuda_ipc_offer.h"

#include <gtest/gtest.h>

#include <string>

#include "peerlane/core/text.h"

namespace peerlane {
namespace {

// docs/wire.md, "Bringing up cuda_ipc", written out by hand.
constexpr const char* kGolden =
    "02"                                // version
    "02"                                // GPUs
    "000102030405060708090a0b0c0d0e0f"  // their UUIDs
    "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff"
    "fcffffef00000000"  // PID namespace
    "00";               // no probe

CudaIpcOffer sample() {
  CudaIpcOffer offer;
  offer.gpus.resize(2);
  for (size_t i = 0; i < 16; ++i) {
    offer.gpus[0][i] = static_cast<uint8_t>(i);
    offer.gpus[1][i] = static_cast<uint8_t>(0xf0 + i);
  }
  offer.pidNamespace = 0xeffffffc;
  return offer;
}

TEST(CudaIpcOffer, GoldenBytes) {
  const std::vector<std::byte> bytes = sample().encode();
  EXPECT_EQ(encodeHex(bytes), kGolden);
  const auto offer = CudaIpcOffer::decode(bytes);
  ASSERT_TRUE(offer.isOk()) << offer.status().toString();
  EXPECT_EQ(offer->gpus, sample().gpus);
  EXPECT_EQ(offer->pidNamespace, 0xeffffffcu);
  EXPECT_FALSE(offer->probe);
}

TEST(CudaIpcOffer, AProbeTravels) {
  CudaIpcOffer offer = sample();
  offer.probe.emplace();
  for (size_t i = 0; i < kLegacyProbeBytes; ++i) (*offer.probe)[i] = static_cast<std::byte>(i);
  std::vector<std::byte> bytes = offer.encode();
  EXPECT_EQ(bytes.size(), 2 + 2 * 16u + 8 + 1 + kLegacyProbeBytes);
  const auto read = CudaIpcOffer::decode(bytes);
  ASSERT_TRUE(read.isOk()) << read.status().toString();
  EXPECT_EQ(read->probe, offer.probe);
  bytes[2 + 2 * 16 + 8] = std::byte{2};
  EXPECT_EQ(CudaIpcOffer::decode(bytes).status().code(), Code::kCorrupt);
}

TEST(CudaIpcOffer, AsManyGpusAsAreAllowed) {
  CudaIpcOffer offer;
  for (size_t i = 0; i < CudaIpcOffer::kMostGpus; ++i)
    offer.gpus.emplace_back().fill(static_cast<uint8_t>(i));
  const std::vector<std::byte> bytes = offer.encode();
  EXPECT_EQ(bytes.size(), 2 + 64 * 16u + 8 + 1);
  EXPECT_EQ(CudaIpcOffer::decode(bytes).value().gpus, offer.gpus);
}

TEST(CudaIpcOffer, BadOffersAreNamed) {
  const std::vector<std::byte> good = sample().encode();
  const auto refusal = [&](std::vector<std::byte> bytes) {
    return CudaIpcOffer::decode(bytes).status();
  };
  for (size_t cut = 0; cut < good.size(); ++cut)
    EXPECT_EQ(refusal({good.begin(), good.begin() + static_cast<ptrdiff_t>(cut)}).code(),
              Code::kCorrupt)
        << cut;
  std::vector<std::byte> longer = good;
  longer.push_back(std::byte{0});
  EXPECT_EQ(refusal(longer).code(), Code::kCorrupt);
  std::vector<std::byte> version = good;
  version[0] = std::byte{1};
  EXPECT_EQ(refusal(version).code(), Code::kNotSupported);
  EXPECT_NE(refusal(version).message().find("version 1; this library speaks 2"), std::string::npos)
      << refusal(version).toString();
  for (const size_t count : {size_t{0}, CudaIpcOffer::kMostGpus + 1, size_t{255}}) {
    std::vector<std::byte> bytes(2 + 16 * count + 9);  // as long as it says
    bytes[0] = std::byte{2};
    bytes[1] = static_cast<std::byte>(count);
    EXPECT_EQ(refusal(bytes).code(), Code::kNotSupported) << count;
    EXPECT_NE(refusal(bytes).message().find(std::to_string(count) + " GPUs; expected 1 to 64"),
              std::string::npos)
        << refusal(bytes).toString();
  }
  // One that says more or fewer than there are.
  for (const int count : {1, 3}) {
    std::vector<std::byte> bytes = good;
    bytes[1] = static_cast<std::byte>(count);
    EXPECT_EQ(refusal(bytes).code(), Code::kCorrupt) << count;
  }
}

}  // namespace
}  // namespace peerlane
