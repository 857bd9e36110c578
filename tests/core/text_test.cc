// SPDX-License-Identifier: Apache-2.0
//
// Parsers and formatters of people's notation: accepted spellings, refused ones with their
// messages, round trips.
#include "peerlane/core/text.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace peerlane {
namespace {

using std::chrono::nanoseconds;
using namespace std::chrono_literals;

constexpr uint64_t kMax64 = std::numeric_limits<uint64_t>::max();

TEST(ParseInteger, AcceptsOnlyPlainDigitsInRange) {
  EXPECT_EQ(*parseInteger("0", 0, 9), 0u);
  EXPECT_EQ(*parseInteger("65535", 1, 65535), 65535u);
  EXPECT_EQ(*parseInteger("18446744073709551615", 0, kMax64), kMax64);
  for (const char* bad : {"", " 1", "1 ", "+1", "-1", "0x1", "1.0", "10", "18446744073709551616"}) {
    auto result = parseInteger(bad, 0, 9);
    ASSERT_FALSE(result.isOk()) << bad;
    EXPECT_EQ(result.status().code(), Code::kInvalidArgument);
    EXPECT_EQ(result.status().message(),
              '"' + std::string(bad) + "\" is not an integer from 0 to 9");
  }
}

TEST(ParseByteSize, UnitsArePowersOf1024) {
  EXPECT_EQ(*parseByteSize("0"), 0u);
  EXPECT_EQ(*parseByteSize("64"), 64u);
  EXPECT_EQ(*parseByteSize("64B"), 64u);
  EXPECT_EQ(*parseByteSize("512KiB"), 512u << 10);
  EXPECT_EQ(*parseByteSize("512k"), 512u << 10);
  EXPECT_EQ(*parseByteSize("64M"), 64u << 20);
  EXPECT_EQ(*parseByteSize("1gib"), 1u << 30);
  EXPECT_EQ(*parseByteSize("3T"), 3ull << 40);
  EXPECT_EQ(*parseByteSize("16777215TiB"), 16777215ull << 40);
}

TEST(ParseByteSize, RefusesWhatIsAmbiguousOrTooLarge) {
  for (const char* bad : {"", "KiB", "1KB", "1.5M", "-1", "1 K", "1Ki", "1KiBs", "0x10", "1e3"}) {
    auto result = parseByteSize(bad);
    ASSERT_FALSE(result.isOk()) << bad;
    EXPECT_EQ(result.status().message(),
              '"' + std::string(bad) +
                  "\" is not a size such as 4096, 512KiB, 64M or 1GiB (powers of 1024)");
  }
  EXPECT_EQ(parseByteSize("16777216TiB").status().message(),
            "\"16777216TiB\" is too large for this quantity");
  EXPECT_EQ(parseByteSize("18446744073709551616").status().message(),
            "\"18446744073709551616\" is too large: at most 18446744073709551615");
}

TEST(FormatByteSize, IsExactAndParsesBack) {
  EXPECT_EQ(formatByteSize(0), "0B");
  EXPECT_EQ(formatByteSize(1000), "1000B");
  EXPECT_EQ(formatByteSize(1024), "1KiB");
  EXPECT_EQ(formatByteSize(1536), "1536B");
  EXPECT_EQ(formatByteSize(16u << 20), "16MiB");
  EXPECT_EQ(formatByteSize(1ull << 50), "1024TiB");
  std::mt19937_64 random(1);
  for (int i = 0; i < 1000; ++i) {
    const uint64_t value = (random() >> (random() % 64)) << (random() % 12);
    EXPECT_EQ(*parseByteSize(formatByteSize(value)), value);
  }
}

TEST(ParseDuration, UnitsAndPlainSeconds) {
  EXPECT_EQ(*parseDuration("30"), 30s);
  EXPECT_EQ(*parseDuration("500ms"), 500ms);
  EXPECT_EQ(*parseDuration("7us"), 7us);
  EXPECT_EQ(*parseDuration("7ns"), 7ns);
  EXPECT_EQ(*parseDuration("2m"), 2min);
  EXPECT_EQ(*parseDuration("24h"), 24h);
  EXPECT_EQ(*parseDuration("9223372036854775807ns"), nanoseconds::max());
}

TEST(ParseDuration, RefusesTheRest) {
  for (const char* bad : {"", "s", "-1s", "1.5s", "1 s", "1S", "1min", "1d", "1s1"}) {
    auto result = parseDuration(bad);
    ASSERT_FALSE(result.isOk()) << bad;
    EXPECT_EQ(result.status().message(),
              '"' + std::string(bad) +
                  "\" is not a duration such as 500ms, 30s, 2m or a number of seconds "
                  "(units ns, us, ms, s, m, h)");
  }
  EXPECT_FALSE(parseDuration("9223372036854775808ns").isOk());
  EXPECT_FALSE(parseDuration("9223372037").isOk()) << "seconds beyond 64-bit nanoseconds";
}

TEST(FormatDuration, IsExactAndParsesBack) {
  EXPECT_EQ(formatDuration(0s), "0s");
  EXPECT_EQ(formatDuration(30s), "30s");
  EXPECT_EQ(formatDuration(90s), "90s");
  EXPECT_EQ(formatDuration(120s), "2m");
  EXPECT_EQ(formatDuration(1500ms), "1500ms");
  EXPECT_EQ(formatDuration(nanoseconds::max()), "9223372036854775807ns");
  std::mt19937_64 random(2);
  for (int i = 0; i < 1000; ++i) {
    const nanoseconds value(static_cast<int64_t>(random() >> (1 + random() % 63)));
    EXPECT_EQ(*parseDuration(formatDuration(value)), value);
  }
}

std::span<const std::byte> bytesOf(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string textOf(const std::vector<std::byte>& bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

TEST(Hex, KnownValuesAndBothCases) {
  EXPECT_EQ(encodeHex({}), "");
  EXPECT_EQ(encodeHex(bytesOf(std::string_view("\x00\x1f\xff", 3))), "001fff");
  EXPECT_EQ(textOf(*decodeHex("001FfF")), std::string("\x00\x1f\xff", 3));
  EXPECT_EQ(decodeHex("abc").status().message(), "not hex: 3 digits, an even number is needed");
  EXPECT_EQ(decodeHex("ab0g").status().message(), "not hex: unexpected character at position 3");
}

// The examples of RFC 4648 section 10, without their padding, and the two digits that differ from
// base64.
TEST(Base64Url, KnownValues) {
  const std::pair<std::string_view, std::string_view> examples[] = {
      {"", ""},           {"f", "Zg"},          {"fo", "Zm8"},          {"foo", "Zm9v"},
      {"foob", "Zm9vYg"}, {"fooba", "Zm9vYmE"}, {"foobar", "Zm9vYmFy"}, {"\xfb\xff\xfe", "-__-"}};
  for (const auto& [plain, encoded] : examples) {
    EXPECT_EQ(encodeBase64Url(bytesOf(plain)), encoded);
    EXPECT_EQ(textOf(*decodeBase64Url(encoded)), plain);
  }
}

TEST(Base64Url, OneSpellingPerValue) {
  EXPECT_EQ(decodeBase64Url("Zg==").status().message(),
            "not base64url: unexpected character at position 2");
  EXPECT_FALSE(decodeBase64Url("Z+8v").isOk());
  EXPECT_FALSE(decodeBase64Url(std::string_view("Z\0vv", 4)).isOk());
  EXPECT_FALSE(decodeBase64Url("Zg\n").isOk());
  EXPECT_EQ(decodeBase64Url("Zm9vY").status().message(),
            "not base64url: 5 characters make no whole bytes");
  EXPECT_EQ(decodeBase64Url("Zh").status().message(),
            "not base64url: the last character has bits beyond the last byte");
  EXPECT_FALSE(decodeBase64Url("Zm9").isOk());
}

TEST(Encodings, RoundTripEveryLength) {
  std::mt19937_64 random(3);
  for (std::size_t size = 0; size < 70; ++size) {
    std::vector<std::byte> bytes(size);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    EXPECT_EQ(*decodeHex(encodeHex(bytes)), bytes);
    EXPECT_EQ(*decodeBase64Url(encodeBase64Url(bytes)), bytes);
    EXPECT_EQ(encodeBase64Url(bytes).size(), (size * 4 + 2) / 3);
  }
}

TEST(Quoted, MakesForeignTextHarmless) {
  EXPECT_EQ(quoted("plain"), "\"plain\"");
  EXPECT_EQ(quoted("a\"b\\c\n\x7f"), "\"a\\\"b\\\\c\\x0a\\x7f\"");
  EXPECT_EQ(quoted("abcdef", 3), "\"abc...\"");
}

}  // namespace
}  // namespace peerlane
