// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/shm/shm_offer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "peerlane/transport/shm/shm_transport.h"
#include "tests/fake/fake_regions.h"
#include "tests/os/few_descriptors.h"

namespace peerlane {
namespace {

// docs/wire.md, "Bringing up shm", written out by hand.
constexpr const char* kGolden =
    "01"                                                                // version
    "8877665544332211"                                                  // address of the nonce
    "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"  // nonce
    "0000100000000000"                                                  // bytes of a direction
    "01";                                                               // lets the peer read

std::vector<std::byte> bytesOf(const std::string& hex) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < hex.size(); i += 2)
    bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

ShmOffer sample() {
  ShmOffer offer;
  offer.nonceAddress = 0x1122334455667788;
  for (size_t i = 0; i < offer.nonce.size(); ++i) offer.nonce[i] = static_cast<std::byte>(i);
  offer.ringBytes = 0x100000;
  return offer;
}

TEST(ShmOffer, GoldenBytes) {
  EXPECT_EQ(sample().encode(), bytesOf(kGolden));
  const auto offer = ShmOffer::decode(bytesOf(kGolden));
  ASSERT_TRUE(offer.isOk()) << offer.status().toString();
  EXPECT_EQ(offer->nonceAddress, sample().nonceAddress);
  EXPECT_EQ(offer->nonce, sample().nonce);
  EXPECT_EQ(offer->ringBytes, sample().ringBytes);
}

TEST(ShmOffer, TheAcceptorBringsNoRing) {
  ShmOffer offer = sample();
  offer.ringBytes = 0;
  std::vector<std::byte> golden = bytesOf(kGolden);
  golden[43] = std::byte{0};
  EXPECT_EQ(offer.encode(), golden);
  EXPECT_EQ(ShmOffer::decode(golden).value().ringBytes, 0u);
}

TEST(ShmOffer, BadOffersAreNamed) {
  const std::vector<std::byte> good = bytesOf(kGolden);
  for (size_t cut = 1; cut < good.size(); ++cut)
    EXPECT_EQ(ShmOffer::decode(std::span(good).first(cut)).status().code(), Code::kCorrupt) << cut;
  EXPECT_FALSE(ShmOffer::decode({}).isOk());
  std::vector<std::byte> later = good;
  later.resize(good.size() + 5);  // fields of a later minor version
  EXPECT_TRUE(ShmOffer::decode(later).isOk());
  std::vector<std::byte> version = good;
  version[0] = std::byte{2};
  EXPECT_EQ(ShmOffer::decode(version).status().code(), Code::kNotSupported);
  EXPECT_NE(ShmOffer::decode(version).status().message().find("version 2"), std::string::npos);
  for (const size_t at : {41, 42, 43, 44, 48}) {  // every other size of a ring, not 0 either
    std::vector<std::byte> ring = good;
    ring[at] ^= std::byte{1};
    EXPECT_EQ(ShmOffer::decode(ring).status().code(), Code::kCorrupt) << at;
  }
}

// An offer with fewer descriptors than it announces would be taken for a lie.
TEST(ShmOffer, HasAllItsDescriptorsOrIsNotMade) {
  const Config config;
  const auto loop = EventLoop::create().value();
  const auto readiness = ReadinessSet::create().value();
  const auto bell = Bell::create().value();
  FakeRegions regions;
  const auto transport = makeShmTransport();
  PeerFacts facts;
  facts.unixSocket = true;
  facts.initiator = true;
  facts.credentials.pid = ::getpid();
  constexpr size_t kNeeded = 5;  // the ring's, the end of a socket that stays, three in the offer
  for (size_t free = 0; free <= kNeeded; ++free) {
    const FewDescriptors few(free);
    auto pending = transport->prepare(facts, {config, *loop, *readiness, *bell, regions, [] {}});
    if (free == kNeeded) {
      ASSERT_TRUE(pending.isOk()) << pending.status().toString();
      EXPECT_EQ((*pending)->takeOffer().fds.size(), 3u);
      continue;
    }
    ASSERT_FALSE(pending.isOk()) << "half of an offer, by " << free << " descriptors";
    EXPECT_EQ(pending.status().code(), Code::kUnavailable) << pending.status().toString();
    EXPECT_NE(pending.status().message().find("ulimit -n"), std::string_view::npos)
        << pending.status().toString();
  }
}

}  // namespace
}  // namespace peerlane
