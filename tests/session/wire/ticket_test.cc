// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/wire/ticket.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <new>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace peerlane {
namespace {

// Made by an independent program from the description in docs/wire.md: context id 10..1f,
// secret 40..5f.
constexpr const char* kGolden =
    "pl1EBESExQVFhcYGRobHB0eH0BBQkNERUZHSElKS0xNTk9QUVJTVFVWV1hZWltcXV5fGBcWFRQTEhECEHVuaXg6QHBlZXJ"
    "sYW5l"
    "LTEOdGNwOls6OjFdOjQwMDA2i_9e";
constexpr const char* kGoldenSecretText = "QEFCQ0RFRkdISUpLTE1OT1BRUlNUVVZXWFlaW1xdXl8";

template <size_t N>
std::array<std::byte, N> countingFrom(int first) {
  std::array<std::byte, N> bytes;
  for (size_t i = 0; i < N; ++i) bytes[i] = static_cast<std::byte>(static_cast<size_t>(first) + i);
  return bytes;
}

Ticket goldenTicket() {
  Ticket ticket;
  ticket.context = ContextId(countingFrom<16>(0x10));
  ticket.secret = Secret(countingFrom<32>(0x40));
  ticket.hostIdentity = 0x1112131415161718;
  ticket.addresses = {"unix:@peerlane-1", "tcp:[::1]:4000"};
  return ticket;
}

bool sameTicket(const Ticket& left, const Ticket& right) {
  return left.context == right.context && left.secret == right.secret &&
         left.hostIdentity == right.hostIdentity && left.addresses == right.addresses;
}

bool contains(const Status& status, std::string_view part) {
  return status.message().find(part) != std::string_view::npos;
}

TEST(Ticket, GoldenText) {
  auto text = goldenTicket().encode();
  ASSERT_TRUE(text.isOk()) << text.status().toString();
  EXPECT_EQ(*text, kGolden);
  auto ticket = Ticket::decode(kGolden);
  ASSERT_TRUE(ticket.isOk()) << ticket.status().toString();
  EXPECT_TRUE(sameTicket(*ticket, goldenTicket()));
}

TEST(Ticket, RoundTripsFromNoAddressToTheMost) {
  for (size_t count = 0; count <= Ticket::kMaxAddresses; ++count) {
    Ticket ticket;
    ticket.context = ContextId::random();
    ticket.secret = Secret::random();
    for (size_t i = 0; i < count; ++i) {
      ticket.addresses.push_back(std::string(i == 0 ? Ticket::kMaxAddressBytes : i, 'x'));
    }
    auto text = ticket.encode();
    ASSERT_TRUE(text.isOk()) << text.status().toString();
    EXPECT_LE(text->size(), Ticket::kMaxTextBytes);
    auto back = Ticket::decode("  " + *text + "\r\n");
    ASSERT_TRUE(back.isOk()) << back.status().toString();
    EXPECT_TRUE(sameTicket(*back, ticket)) << count;
  }
}

TEST(Ticket, EncodeRefusesWhatDecodeWould) {
  Ticket ticket = goldenTicket();
  ticket.addresses.assign(17, "a");
  EXPECT_TRUE(contains(ticket.encode().status(), "17 addresses; at most 16"));
  ticket = goldenTicket();
  ticket.addresses[1] = std::string(256, 'a');
  EXPECT_TRUE(contains(ticket.encode().status(), "256 bytes; at most 255"));
  ticket.addresses[1] = "a\nb";
  EXPECT_TRUE(contains(ticket.encode().status(), "control character"));
  ticket.addresses[1] = "";
  EXPECT_TRUE(contains(ticket.encode().status(), "is empty"));
  ticket = goldenTicket();
  ticket.secret = Secret();
  EXPECT_TRUE(contains(ticket.encode().status(), "without a secret"));
  ticket = goldenTicket();
  ticket.context = ContextId();
  EXPECT_TRUE(contains(ticket.encode().status(), "without a context id"));
}

TEST(Ticket, EveryTruncationIsRefused) {
  const std::string golden(kGolden);
  for (size_t size = 0; size < golden.size(); ++size) {
    auto ticket = Ticket::decode(golden.substr(0, size));
    ASSERT_FALSE(ticket.isOk()) << size;
    EXPECT_EQ(ticket.status().code(), size < 3 ? Code::kInvalidArgument : Code::kCorrupt) << size;
    EXPECT_TRUE(size < 3 || contains(ticket.status(), "truncated"))
        << size << ": " << ticket.status().toString();
  }
}

TEST(Ticket, EveryOtherCharacterAtEveryPlaceIsRefused) {
  const std::string golden(kGolden);
  for (size_t at = 0; at < golden.size(); ++at) {
    for (int other = 0; other < 256; ++other) {
      std::string text = golden;
      text[at] = static_cast<char>(other);
      if (text[at] == golden[at]) continue;
      EXPECT_FALSE(Ticket::decode(text).isOk()) << "place " << at << " character " << other;
    }
  }
}

TEST(Ticket, ErrorsSayWhatIsWrong) {
  const std::string golden(kGolden);
  std::string other = golden;
  other[2] = '7';
  EXPECT_TRUE(contains(Ticket::decode(other).status(), "version 7; this build reads version 1"));
  other = golden;
  other[40] = other[40] == 'B' ? 'C' : 'B';
  EXPECT_TRUE(contains(Ticket::decode(other).status(), "checksum"));
  EXPECT_TRUE(contains(Ticket::decode(golden + "AAAA").status(), "3 bytes after its end"));
  EXPECT_TRUE(contains(Ticket::decode("pl1+/+/").status(), "not base64url"));
  EXPECT_TRUE(contains(Ticket::decode("pl1").status(), "truncated"));
  EXPECT_TRUE(contains(Ticket::decode("").status(), "not a ticket"));
  EXPECT_TRUE(contains(Ticket::decode(golden + std::string(9000, 'A')).status(), "not a ticket"));
}

// Well-formed bytes with right checksums whose fields break a limit.
TEST(Ticket, FieldsOutsideTheirLimitsAreRefused) {
  const std::pair<std::string, const char*> cases[] = {
      {"pl1EBESExQVFhcYGRobHB0eH0BBQkNERUZHSElKS0xNTk9QUVJTVFVWV1hZWltcXV5fAAAAAAAAAAARAWEBYQFhAWEB"
       "YQFhAWEBYQFhAWEBYQFhAWEBYQFhAWEBYUzamJs",
       "17 addresses; at most 16"},
      {"pl1EBESExQVFhcYGRobHB0eH0BBQkNERUZHSElKS0xNTk9QUVJTVFVWV1hZWltcXV5fAAAAAAAAAAABAmEb_9sB4g",
       "address 0 contains a control character"},
      {"pl1EBESExQVFhcYGRobHB0eH0BBQkNERUZHSElKS0xNTk9QUVJTVFVWV1hZWltcXV5fAAAAAAAAAAABAMMwy_I",
       "address 0 is empty"},
      {"pl1AAAAAAAAAAAAAAAAAAAAAEBBQkNERUZHSElKS0xNTk9QUVJTVFVWV1hZWltcXV5fAAAAAAAAAAAAWL9csQ",
       "context id is null"},
      {"pl1EBESExQVFhcYGRobHB0eHwAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAqSv0yw",
       "secret is empty"},
  };
  for (const auto& [text, reason] : cases) {
    auto ticket = Ticket::decode(text);
    ASSERT_FALSE(ticket.isOk()) << reason;
    EXPECT_EQ(ticket.status().code(), Code::kCorrupt);
    EXPECT_TRUE(contains(ticket.status(), reason)) << ticket.status().toString();
  }
}

TEST(Ticket, ErrorsNeverRepeatTheText) {
  const std::string secret = Secret::random().revealText();
  EXPECT_FALSE(contains(Ticket::decode(secret).status(), secret.substr(0, 8)));
  EXPECT_FALSE(contains(Secret::fromText(secret + "A").status(), secret.substr(0, 8)));
  EXPECT_FALSE(contains(readTicket(secret).status(), secret.substr(0, 8)));
}

TEST(Secret, TextForms) {
  const Secret secret(countingFrom<32>(0x40));
  EXPECT_EQ(secret.revealText(), kGoldenSecretText);
  std::string hex;
  for (int i = 0x40; i < 0x60; ++i) {
    constexpr char kDigits[] = "0123456789ABCDEF";
    hex += {kDigits[i / 16], kDigits[i % 16]};
  }
  for (const std::string& text : {hex, std::string(kGoldenSecretText), " " + hex + "\n"}) {
    auto back = Secret::fromText(text);
    ASSERT_TRUE(back.isOk()) << back.status().toString();
    EXPECT_TRUE(*back == secret);
  }
  for (const std::string& text :
       {std::string(), hex.substr(1), hex + "0", std::string(64, 'g'), std::string(43, '+'),
        std::string(kGoldenSecretText) + "=", std::string(64, '0'), std::string(43, 'A')}) {
    auto back = Secret::fromText(text);
    ASSERT_FALSE(back.isOk()) << text;
    EXPECT_EQ(back.status().code(), Code::kInvalidArgument);
  }
}

TEST(Secret, OnlyDigitsAreDigits) {
  const auto isDigit = [](int c, std::string_view more) {
    return (c >= '0' && c <= '9') || more.find(static_cast<char>(c)) != std::string_view::npos;
  };
  std::string letters;
  for (char c = 'a'; c <= 'z'; ++c) letters += {c, static_cast<char>(c - 'a' + 'A')};
  for (int c = 0; c < 256; ++c) {
    std::string hex(64, '1');
    hex[30] = static_cast<char>(c);
    EXPECT_EQ(Secret::fromText(hex).isOk(), isDigit(c, "abcdefABCDEF")) << c;
    std::string base64(kGoldenSecretText);
    base64[30] = static_cast<char>(c);
    EXPECT_EQ(Secret::fromText(base64).isOk(), isDigit(c, letters + "-_")) << c;
  }
}

TEST(Secret, EqualityLooksAtEveryByte) {
  const auto bytes = countingFrom<32>(0x40);
  for (size_t i = 0; i < bytes.size(); ++i) {
    auto other = bytes;
    other[i] ^= std::byte{1};
    EXPECT_FALSE(Secret(bytes) == Secret(other)) << i;
  }
  EXPECT_TRUE(Secret(bytes) == Secret(bytes));
  EXPECT_TRUE(Secret().isEmpty());
  EXPECT_FALSE(Secret::random().isEmpty());
  EXPECT_FALSE(Secret::random() == Secret::random());
}

TEST(Secret, IsWipedWhenItEnds) {
  alignas(Secret) std::array<std::byte, sizeof(Secret)> place;
  auto* secret = new (place.data()) Secret(countingFrom<32>(0x40));
  EXPECT_NE(place[5], std::byte{0});
  secret->~Secret();
  // The compiler may assume that a dead object's bytes are not read, hence the volatile look.
  const volatile std::byte* bytes = place.data();
  for (size_t i = 0; i < place.size(); ++i)
    EXPECT_EQ(static_cast<std::byte>(bytes[i]), std::byte{0});
}

TEST(ContextId, TextForms) {
  const ContextId id(countingFrom<16>(0xf0));
  EXPECT_EQ(id.toText(), "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff");
  auto back = ContextId::fromText("F0f1f2f3f4f5f6f7f8f9fafbfcfdfeff");
  ASSERT_TRUE(back.isOk());
  EXPECT_EQ(*back, id);
  EXPECT_FALSE(ContextId::fromText("f0").isOk());
  EXPECT_FALSE(ContextId::fromText(std::string(32, 'x')).isOk());
  EXPECT_TRUE(ContextId().isNull());
  std::set<ContextId> seen;
  for (int i = 0; i < 1000; ++i) seen.insert(ContextId::random());
  EXPECT_EQ(seen.size(), 1000u);
}

class TicketSource : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "ticket_test_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override {
    unlink((folder_ + "/file").c_str());
    rmdir(folder_.c_str());
  }
  std::string file(std::string_view content) {
    std::ofstream(folder_ + "/file", std::ios::binary) << content;
    return "@" + folder_ + "/file";
  }
  std::string folder_;
  std::istringstream nothing_;
};

TEST_F(TicketSource, TextFileEnvironmentAndStandardInput) {
  const std::string golden(kGolden);
  ASSERT_EQ(setenv("TICKET_TEST_VALUE", (golden + " ").c_str(), 1), 0);
  std::istringstream input("\n \n" + golden + "\nthe next line is not taken\n");
  for (const std::string& source : {golden, file("\r\n" + golden + "\r\n"),
                                    std::string("env:TICKET_TEST_VALUE"), std::string("-")}) {
    auto ticket = readTicket(source, input);
    ASSERT_TRUE(ticket.isOk()) << source << ": " << ticket.status().toString();
    EXPECT_TRUE(sameTicket(*ticket, goldenTicket()));
  }
  std::string rest;
  std::getline(input, rest);
  EXPECT_EQ(rest, "the next line is not taken");
  auto secret = readSecret(file(kGoldenSecretText), nothing_);
  ASSERT_TRUE(secret.isOk()) << secret.status().toString();
  EXPECT_TRUE(*secret == goldenTicket().secret);
  unsetenv("TICKET_TEST_VALUE");
}

TEST_F(TicketSource, EachFailureNamesTheSource) {
  EXPECT_TRUE(contains(readTicket("-", nothing_).status(), "standard input holds no text"));
  EXPECT_TRUE(contains(readTicket("env:TICKET_TEST_UNSET", nothing_).status(),
                       "'TICKET_TEST_UNSET' is not set"));
  EXPECT_TRUE(contains(readTicket("env:", nothing_).status(), "'' is not set"));
  const auto missing = readTicket("@" + folder_ + "/missing", nothing_);
  EXPECT_EQ(missing.status().code(), Code::kSystem);
  EXPECT_EQ(missing.status().systemError(), ENOENT);
  EXPECT_TRUE(contains(missing.status(), "/missing"));
  EXPECT_TRUE(contains(readTicket("@" + folder_, nothing_).status(), "is a folder"));
  EXPECT_TRUE(contains(readTicket(file(" \n"), nothing_).status(), "holds no text"));
  EXPECT_TRUE(contains(readTicket(file(std::string(100000, '\n')), nothing_).status(),
                       "more than the 8192"));
  std::istringstream endless(std::string(100000, 'A'));
  EXPECT_TRUE(contains(readTicket("-", endless).status(), "more than the 8192"));
  EXPECT_LE(endless.tellg(), 8193);
}

TEST(HostIdentity, DependsOnBootAndNamespace) {
  EXPECT_EQ(hostIdentityOf("boot-1\n", 4026531840), 0x6c13afb889ec1834);
  EXPECT_NE(hostIdentityOf("boot-1", 4026531841), hostIdentityOf("boot-1", 4026531840));
  EXPECT_NE(hostIdentityOf("boot-2", 4026531840), hostIdentityOf("boot-1", 4026531840));
  EXPECT_EQ(hostIdentityOf("", 1), 0u);
  EXPECT_NE(localHostIdentity(), 0u);
  EXPECT_EQ(localHostIdentity(), localHostIdentity());
}

TEST(HostIdentity, TellsBootAndNamespaceApart) {
  const uint64_t mine = hostIdentityOf("boot-1", 4026531840);
  EXPECT_EQ(hostRelation(mine, mine), HostRelation::kSameNetwork);
  EXPECT_EQ(hostRelation(hostIdentityOf("boot-1", 4026531841), mine), HostRelation::kOtherNetwork);
  // Network namespaces have the same numbers on all hosts.
  EXPECT_EQ(hostRelation(hostIdentityOf("boot-2", 4026531840), mine), HostRelation::kOtherHost);
  EXPECT_EQ(hostRelation(hostIdentityOf("boot-2", 4026531841), mine), HostRelation::kOtherHost);
  EXPECT_EQ(hostRelation(0, mine), HostRelation::kUnknown);
  EXPECT_EQ(hostRelation(mine, 0), HostRelation::kUnknown);
  EXPECT_EQ(hostRelation(0, 0), HostRelation::kUnknown);
}

}  // namespace
}  // namespace peerlane
