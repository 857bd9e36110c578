// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/wire/secure_channel.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace peerlane {
namespace {

using Bytes = std::vector<std::byte>;

SessionKeys sideA() {
  SessionKeys keys;
  for (size_t i = 0; i < Secret::kBytes; ++i) {
    keys.send.writableBytes()[i] = static_cast<std::byte>(i + 1);
    keys.receive.writableBytes()[i] = static_cast<std::byte>(200 - i);
  }
  return keys;
}
SessionKeys sideB() {
  return {sideA().receive, sideA().send};
}

std::unique_ptr<SecureChannel> channel(const SessionKeys& keys) {
  return SecureChannel::create(keys).value();
}

Bytes pattern(size_t size) {
  Bytes bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7 + size);
  return bytes;
}

bool contains(const Status& status, std::string_view part) {
  return status.message().find(part) != std::string_view::npos;
}

// Feeds everything in pieces and returns the messages, or the first error.
Result<std::vector<Bytes>> receive(SecureChannel& to, std::span<const std::byte> input,
                                   size_t piece = 1 << 20) {
  std::vector<Bytes> messages;
  while (!input.empty()) {
    PEERLANE_ASSIGN(const size_t taken, to.feed(input.first(std::min(piece, input.size()))));
    input = input.subspan(taken);
    PEERLANE_ASSIGN(auto message, to.next());
    if (message)
      messages.push_back(std::move(*message));
    else if (taken == 0)
      return Status(Code::kInternal, "no progress");
  }
  return messages;
}

TEST(SecureChannel, MessagesArriveWholeAndInOrderInAnyPieces) {
  for (const size_t piece : {1u, 3u, 29u, 4096u, 1u << 20}) {
    auto a = channel(sideA());
    auto b = channel(sideB());
    Bytes wire;
    std::vector<Bytes> sent;
    for (const size_t size : {0u, 1u, 100u, 5000u, 0u, 17u}) {
      sent.push_back(pattern(size));
      const Bytes sealed = a->seal(sent.back()).value();
      wire.insert(wire.end(), sealed.begin(), sealed.end());
    }
    auto got = receive(*b, wire, piece);
    ASSERT_TRUE(got.isOk()) << got.status().toString();
    EXPECT_EQ(*got, sent);
    EXPECT_TRUE(b->finish().isOk());
  }
}

TEST(SecureChannel, BothDirectionsAreIndependent) {
  auto a = channel(sideA());
  auto b = channel(sideB());
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(receive(*b, a->seal(pattern(10)).value())->at(0), pattern(10));
    EXPECT_EQ(receive(*a, b->seal(pattern(20)).value())->at(0), pattern(20));
  }
}

TEST(SecureChannel, FramingAsSpecified) {
  auto a = channel(sideA());
  const Bytes first = a->seal(pattern(300)).value();
  ASSERT_EQ(first.size(), 24u + 4 + 17 + 300);
  // 300 + 17 = 0x13d, little endian, after the stream header.
  const std::array<std::byte, 4> length = {std::byte{0x3d}, std::byte{0x01}, std::byte{0},
                                           std::byte{0}};
  EXPECT_TRUE(std::equal(length.begin(), length.end(), first.begin() + 24));
  const Bytes second = a->seal(pattern(300)).value();
  ASSERT_EQ(second.size(), 4u + 17 + 300);
  EXPECT_TRUE(std::equal(length.begin(), length.end(), second.begin()));
  EXPECT_FALSE(std::equal(second.begin() + 4, second.end(), first.begin() + 28))
      << "repeats itself";
}

TEST(SecureChannel, GoldenStreamIsStillReadable) {
  const std::string golden =
      "049deebec34b8bcf7b4c2bfb1fd5eac75de92588974f77db190000007d6de960e3a9e66e3c653bbd"
      "7efdd64a3f3b5c62887352cbdc11000000ac088ca296099788ea2ebf471de1b079c114000000f574"
      "9e758937b6d400a37801b8881d13970d1bad";
  Bytes wire;
  for (size_t i = 0; i < golden.size(); i += 2) {
    wire.push_back(static_cast<std::byte>(std::stoi(golden.substr(i, 2), nullptr, 16)));
  }
  auto b = channel(sideB());
  auto got = receive(*b, wire);
  ASSERT_TRUE(got.isOk()) << got.status().toString();
  EXPECT_EQ(*got, (std::vector<Bytes>{pattern(8), pattern(0), pattern(3)}));
}

TEST(SecureChannel, LargestMessageAndOneMore) {
  auto a = channel(sideA());
  auto b = channel(sideB());
  auto tooLong = a->seal(pattern(SecureChannel::kMaxPlaintextBytes + 1));
  EXPECT_EQ(tooLong.status().code(), Code::kInvalidArgument);
  EXPECT_TRUE(contains(tooLong.status(), "65520 bytes; at most 65519"));
  const Bytes largest = pattern(SecureChannel::kMaxPlaintextBytes);  // and the channel lives on
  EXPECT_EQ(receive(*b, a->seal(largest).value(), 1000)->at(0), largest);
  EXPECT_EQ(receive(*b, a->seal(pattern(4)).value())->at(0), pattern(4));
}

TEST(SecureChannel, EveryFlippedBitOfARecordIsRefusedForGood) {
  auto a = channel(sideA());
  const Bytes first = a->seal(pattern(9)).value();
  const Bytes second = a->seal(pattern(40)).value();
  for (size_t bit = 0; bit < 8 * (first.size() + second.size()); ++bit) {
    Bytes wire = first;
    wire.insert(wire.end(), second.begin(), second.end());
    wire[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    auto b = channel(sideB());
    auto got = receive(*b, wire);
    // A longer length waits for bytes that never come: the end of the stream tells.
    Status status = got.isOk() ? b->finish() : got.status();
    ASSERT_FALSE(status.isOk()) << "bit " << bit;
    const Code code = status.code();
    EXPECT_TRUE(code == Code::kPermissionDenied || code == Code::kCorrupt) << status.toString();
    EXPECT_EQ(b->feed(first).status().code(), code);
    EXPECT_EQ(b->next().status().code(), code);
    EXPECT_EQ(b->seal(pattern(1)).status().code(), code);
    EXPECT_EQ(b->finish().code(), code);
  }
}

TEST(SecureChannel, ReplayReorderDropAndReflectionAreRefused) {
  auto a = channel(sideA());
  const Bytes one = a->seal(pattern(9)).value();
  const Bytes two = a->seal(pattern(9)).value();
  const Bytes three = a->seal(pattern(9)).value();
  const auto after = [&](const Bytes& next) {
    auto b = channel(sideB());
    EXPECT_TRUE(receive(*b, one).isOk());
    return receive(*b, next).status();
  };
  EXPECT_TRUE(after(two).isOk());
  EXPECT_EQ(after(three).code(), Code::kPermissionDenied) << "two was dropped";
  EXPECT_EQ(after(Bytes(one.begin() + 24, one.end())).code(), Code::kPermissionDenied) << "replay";
  auto twice = channel(sideB());
  EXPECT_TRUE(receive(*twice, one).isOk());
  EXPECT_TRUE(receive(*twice, two).isOk());
  EXPECT_EQ(receive(*twice, two).status().code(), Code::kPermissionDenied);
  EXPECT_EQ(receive(*a, one).status().code(), Code::kPermissionDenied) << "own record came back";
}

TEST(SecureChannel, EveryTruncationIsNoticed) {
  auto a = channel(sideA());
  const Bytes wire = a->seal(pattern(50)).value();
  for (size_t size = 1; size < wire.size(); ++size) {
    auto b = channel(sideB());
    auto got = receive(*b, std::span(wire).first(size));
    ASSERT_TRUE(got.isOk()) << got.status().toString();
    EXPECT_TRUE(got->empty());
    const Status end = b->finish();
    if (size == 24) {
      EXPECT_TRUE(end.isOk()) << "between header and first record";
    } else {
      EXPECT_EQ(end.code(), Code::kCorrupt) << size;
      EXPECT_TRUE(
          contains(end, "ended inside a record: " + std::to_string(size > 24 ? size - 24 : size)))
          << end.toString();
      EXPECT_EQ(b->next().status().code(), Code::kCorrupt);
    }
  }
}

TEST(SecureChannel, LengthsOutsideTheLimitAreRefusedAtOnce) {
  for (const uint32_t length : {0u, 1u, 16u, 65537u, 0x01000000u, 0x7fffffffu, 0xffffffffu}) {
    auto b = channel(sideB());
    ASSERT_TRUE(b->feed(Bytes(24)).isOk());
    Bytes four;
    for (int i = 0; i < 4; ++i) four.push_back(static_cast<std::byte>(length >> (8 * i)));
    auto fed = b->feed(four);
    EXPECT_EQ(fed.status().code(), Code::kCorrupt) << length;
    EXPECT_TRUE(contains(fed.status(), std::to_string(length) + " bytes; 17 to 65536"));
  }
}

TEST(SecureChannel, TakesNoMoreThanOneRecordUntilItIsFetched) {
  auto a = channel(sideA());
  auto b = channel(sideB());
  Bytes wire = a->seal(pattern(5)).value();
  const size_t firstBytes = wire.size();
  const Bytes second = a->seal(pattern(6)).value();
  wire.insert(wire.end(), second.begin(), second.end());
  EXPECT_EQ(b->feed(wire).value(), firstBytes);
  EXPECT_EQ(b->feed(second).value(), 0u);
  EXPECT_TRUE(b->finish().isOk()) << "the record is whole";
  EXPECT_EQ(b->next().value(), pattern(5));
  EXPECT_FALSE(b->next().value().has_value());
  EXPECT_EQ(b->feed(second).value(), second.size());
  EXPECT_EQ(b->next().value(), pattern(6));
}

TEST(SecureChannel, RandomBytesNeverOpen) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 2000; ++round) {
    auto b = channel(sideB());
    Bytes noise(random() % 400);
    for (std::byte& byte : noise) byte = static_cast<std::byte>(random());
    // A plausible length in half of the rounds.
    if (round % 2 == 0 && noise.size() >= 28) {
      noise[24] = static_cast<std::byte>(random() % 100 + 17);
      noise[25] = noise[26] = noise[27] = std::byte{0};
    }
    auto got = receive(*b, noise);
    EXPECT_TRUE(!got.isOk() || got->empty());
  }
}

TEST(SecureChannel, CreateRefusesKeysThatAreNoPair) {
  EXPECT_EQ(SecureChannel::create({}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(SecureChannel::create({sideA().send, sideA().send}).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(SecureChannel::create({sideA().send, {}}).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace peerlane
