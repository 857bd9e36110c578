// SPDX-License-Identifier: Apache-2.0
//
// Offers of verbs links: what is written is read, what is not one is refused by name, and both
// sides choose the same addresses.
#include "peerlane/transport/verbs/device/verbs_offer.h"

#include <gtest/gtest.h>

#include <arpa/inet.h>

#include "tests/core/expect_ok.h"

namespace peerlane {
namespace {

using verbs::Gid;
using Kind = Gid::Kind;

Gid gid(const char* address, Kind kind, uint32_t index = 0) {
  Gid gid{.bytes = {}, .index = index, .kind = kind};
  EXPECT_EQ(inet_pton(AF_INET6, address, gid.bytes.data()), 1) << address;
  return gid;
}

VerbsOffer offer(std::vector<Gid> gids = {gid("::ffff:10.1.0.1", Kind::kRoceV2)}) {
  VerbsOffer offer;
  offer.device = "mlx5_0:1";
  offer.isEthernet = true;
  offer.adds = true;
  offer.ordersWrites = true;
  offer.mailsWords = true;
  offer.mtu = IBV_MTU_1024;
  offer.mostReads = 16;
  offer.lid = 3;
  offer.pair = 0xabcdef;
  offer.firstPacket = 0x123456;
  offer.receives = 16;
  offer.control = 0x7f0012345640;
  offer.controlKey = 0xfedcba98;
  offer.gids = std::move(gids);
  return offer;
}

// Offsets in the format.
constexpr size_t kVersion = 4, kMtu = 7, kMostReads = 8, kPair = 11, kFirstPacket = 15,
                 kNameLength = 35;

Status parsed(const std::vector<std::byte>& bytes) {
  return parseVerbsOffer(bytes).status();
}

TEST(VerbsOffer, IsReadAsItWasWritten) {
  const VerbsOffer there = offer({gid("fe80::1", Kind::kRoceV1), gid("fd00::1", Kind::kRoceV2)});
  const VerbsOffer here = MUST(parseVerbsOffer(encodeVerbsOffer(there)));
  EXPECT_EQ(here.device, there.device);
  EXPECT_TRUE(here.isEthernet && here.adds && here.ordersWrites && here.mailsWords);
  EXPECT_EQ(here.mtu, there.mtu);
  EXPECT_EQ(here.mostReads, there.mostReads);
  EXPECT_EQ(here.lid, there.lid);
  EXPECT_EQ(here.pair, there.pair);
  EXPECT_EQ(here.firstPacket, there.firstPacket);
  EXPECT_EQ(here.receives, there.receives);
  EXPECT_EQ(here.control, there.control);
  EXPECT_EQ(here.controlKey, there.controlKey);
  ASSERT_EQ(here.gids.size(), 2u);
  EXPECT_EQ(here.gids[1].bytes, there.gids[1].bytes);
  EXPECT_EQ(here.gids[1].kind, Kind::kRoceV2);
  // Each flag by itself.
  for (bool VerbsOffer::*const flag : {&VerbsOffer::isEthernet, &VerbsOffer::adds,
                                       &VerbsOffer::ordersWrites, &VerbsOffer::mailsWords}) {
    VerbsOffer one = offer();
    one.isEthernet = one.adds = one.ordersWrites = one.mailsWords = false;
    one.*flag = true;
    const VerbsOffer again = MUST(parseVerbsOffer(encodeVerbsOffer(one)));
    EXPECT_EQ(again.isEthernet + again.adds + again.ordersWrites + again.mailsWords, 1);
    EXPECT_TRUE(again.*flag);
  }
}

TEST(VerbsOffer, ThatIsCutOffAnywhereIsRefused) {
  const std::vector<std::byte> whole = encodeVerbsOffer(offer());
  for (size_t bytes = 0; bytes < whole.size(); ++bytes)
    EXPECT_EQ(parsed({whole.begin(), whole.begin() + static_cast<ptrdiff_t>(bytes)}).code(),
              Code::kCorrupt)
        << bytes;
}

TEST(VerbsOffer, OfALaterBuildMayHaveMoreAtItsEnd) {
  std::vector<std::byte> bytes = encodeVerbsOffer(offer());
  bytes.resize(bytes.size() + 7);
  EXPECT_OK(parsed(bytes));
}

TEST(VerbsOffer, OfAnotherVersionIsRefusedNamingBoth) {
  std::vector<std::byte> bytes = encodeVerbsOffer(offer());
  bytes[kVersion] = std::byte{9};
  const Status status = parsed(bytes);
  EXPECT_EQ(status.code(), Code::kNotSupported);
  EXPECT_NE(status.message().find('9'), std::string::npos) << status.toString();
  EXPECT_NE(status.message().find('1'), std::string::npos) << status.toString();
}

TEST(VerbsOffer, WithAValueThatNoDeviceHasIsRefused) {
  const std::vector<std::byte> good = encodeVerbsOffer(offer());
  const size_t gids = kNameLength + 4 + offer().device.size();
  ASSERT_OK(parsed(good));
  struct Bad {
    size_t at;
    uint8_t value;
    const char* words;
  };
  for (const Bad& bad :
       {Bad{0, 0, "magic"}, Bad{kMtu, 0, "packet size"}, Bad{kMtu, 6, "packet size"},
        Bad{kMostReads, 0, "no reads"}, Bad{kPair + 3, 1, "24 bits"},
        Bad{kFirstPacket + 3, 1, "24 bits"}, Bad{kNameLength + 1, 0xff, ""},
        Bad{gids, 17, "too many"}, Bad{gids, 2, ""}, Bad{gids + 1, 3, "kind"}}) {
    std::vector<std::byte> bytes = good;
    ASSERT_NE(bytes[bad.at], std::byte{bad.value}) << bad.at;
    bytes[bad.at] = std::byte{bad.value};
    const Status status = parsed(bytes);
    EXPECT_EQ(status.code(), Code::kCorrupt) << bad.at;
    EXPECT_NE(status.message().find(bad.words), std::string::npos)
        << bad.at << ": " << status.toString();
  }
}

struct Choice {
  std::vector<Gid> dialler, listener;
  const char* words;  // the pair, as text; empty: none
};

TEST(VerbsOffer, BothSidesChooseTheSameAddresses) {
  const Gid linkLocal = gid("fe80::1", Kind::kRoceV2), otherLocal = gid("fe80::2", Kind::kRoceV2);
  const Gid ipv4 = gid("::ffff:10.1.0.1", Kind::kRoceV2),
            near = gid("::ffff:10.1.0.2", Kind::kRoceV2),
            far = gid("::ffff:10.2.0.2", Kind::kRoceV2);
  const Gid old = gid("::ffff:10.1.0.1", Kind::kRoceV1),
            oldNear = gid("::ffff:10.1.0.2", Kind::kRoceV1);
  const Gid ipv6 = gid("fd00::1", Kind::kRoceV2), near6 = gid("fd00::2", Kind::kRoceV2);
  for (const Choice& choice :
       {Choice{{ipv4}, {far, near}, "10.1.0.1 10.1.0.2"},
        Choice{{ipv4}, {far}, "10.1.0.1 10.2.0.2"},
        Choice{{old, ipv4}, {oldNear, far}, "v2 v2"},  // the later version before the same network
        Choice{{linkLocal, ipv4}, {otherLocal, near}, "10.1.0.1 10.1.0.2"},
        Choice{{linkLocal}, {otherLocal}, "fe80::1 fe80::2"},
        Choice{{ipv6, ipv4}, {near6}, "fd00::1 fd00::2"}, Choice{{ipv4}, {near6}, ""},
        Choice{{linkLocal}, {near6}, ""}, Choice{{old}, {near}, ""}, Choice{{}, {near}, ""}}) {
    const Result<GidPair> pair = agreeOnGids(offer(choice.dialler), offer(choice.listener));
    const std::string words = choice.words;
    if (words.empty()) {
      EXPECT_EQ(pair.status().code(), Code::kNotSupported);
      continue;
    }
    ASSERT_OK(pair.status());
    EXPECT_NE(pair->dialler.text().find(words.substr(0, words.find(' '))), std::string::npos)
        << pair->dialler.text();
    EXPECT_NE(pair->listener.text().find(words.substr(words.find(' ') + 1)), std::string::npos)
        << pair->listener.text();
  }
}

TEST(VerbsOffer, WithoutACommonAddressIsRefusedNamingThoseOfBoth) {
  const Status status = agreeOnGids(offer({gid("fd00::1", Kind::kRoceV2)}),
                                    offer({gid("::ffff:10.1.0.2", Kind::kRoceV2)}))
                            .status();
  EXPECT_EQ(status.code(), Code::kNotSupported);
  for (const char* words : {"fd00::1", "10.1.0.2", "RoCE v2", "PEERLANE_IB_GID_INDEX"})
    EXPECT_NE(status.message().find(words), std::string::npos) << status.toString();
}

TEST(VerbsOffer, OfInfiniBandDoesNotSuitOneOfRoce) {
  VerbsOffer infiniBand = offer({gid("fe80::1", Kind::kInfiniBand)});
  infiniBand.isEthernet = false;
  infiniBand.device = "ib0:1";
  for (const bool isDialler : {true, false}) {
    const Status status =
        (isDialler ? agreeOnGids(infiniBand, offer()) : agreeOnGids(offer(), infiniBand)).status();
    EXPECT_EQ(status.code(), Code::kNotSupported);
    EXPECT_NE(status.message().find("InfiniBand port (ib0:1)"), std::string::npos);
    EXPECT_NE(status.message().find("PEERLANE_IB_HCA"), std::string::npos);
    EXPECT_NE(status.message().find("RoCE port (mlx5_0:1)"), std::string::npos);
  }
  VerbsOffer other = infiniBand;
  other.gids = {gid("fe80::2", Kind::kInfiniBand)};
  EXPECT_OK(agreeOnGids(infiniBand, other).status());
}

}  // namespace
}  // namespace peerlane
