// SPDX-License-Identifier: Apache-2.0
#include "peerlane/core/text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>

namespace peerlane {
namespace {

constexpr char kHexDigits[] = "0123456789abcdef";
constexpr char kBase64Digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

struct Unit {
  std::string_view name;
  uint64_t value;
};

// Largest first: formatting takes the first that divides.
constexpr Unit kByteUnits[] = {
    {"TiB", 1ull << 40}, {"GiB", 1ull << 30}, {"MiB", 1ull << 20}, {"KiB", 1ull << 10}, {"B", 1}};
constexpr Unit kTimeUnits[] = {{"h", 3600'000'000'000ull}, {"m", 60'000'000'000ull},
                               {"s", 1'000'000'000ull},    {"ms", 1'000'000ull},
                               {"us", 1'000ull},           {"ns", 1ull}};

Status badText(std::string_view text, std::string_view accepted) {
  return Status(Code::kInvalidArgument, quoted(text) + " is not " + std::string(accepted));
}

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

bool sameIgnoringCase(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return lower(x) == lower(y); });
}

// A number and the unit name after it. Writes `unit` only on success.
Result<uint64_t> splitNumber(std::string_view text, std::string_view accepted,
                             std::string_view& unit) {
  uint64_t number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc::result_out_of_range) {
    return Status(Code::kInvalidArgument, quoted(text) + " is too large: at most " +
                                              std::to_string(std::numeric_limits<uint64_t>::max()));
  }
  if (error != std::errc()) return badText(text, accepted);
  unit = text.substr(static_cast<std::size_t>(end - text.data()));
  return number;
}

Result<uint64_t> scaled(std::string_view text, uint64_t number, uint64_t unit, uint64_t high) {
  if (number > high / unit) {
    return Status(Code::kInvalidArgument, quoted(text) + " is too large for this quantity");
  }
  return number * unit;
}

std::string formatExact(uint64_t value, std::span<const Unit> units) {
  for (const Unit& unit : units) {
    if (value % unit.value == 0) return std::to_string(value / unit.value) + std::string(unit.name);
  }
  return {};
}

int digitOf(std::string_view digits, char c) {
  auto at = digits.find(c);
  return at == std::string_view::npos ? -1 : static_cast<int>(at);
}

Status badCharacter(const char* format, std::size_t position) {
  return Status(Code::kInvalidArgument, std::string("not ") + format +
                                            ": unexpected character at position " +
                                            std::to_string(position));
}

}  // namespace

Result<uint64_t> parseInteger(std::string_view text, uint64_t low, uint64_t high) {
  uint64_t number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < low || number > high) {
    return badText(text, "an integer from " + std::to_string(low) + " to " + std::to_string(high));
  }
  return number;
}

Result<uint64_t> parseByteSize(std::string_view text) {
  constexpr std::string_view kAccepted =
      "a size such as 4096, 512KiB, 64M or 1GiB (powers of 1024)";
  std::string_view suffix;
  PEERLANE_ASSIGN(uint64_t number, splitNumber(text, kAccepted, suffix));
  if (suffix.empty()) return number;
  for (const Unit& unit : kByteUnits) {
    if (sameIgnoringCase(suffix, unit.name) ||
        (unit.value > 1 && sameIgnoringCase(suffix, unit.name.substr(0, 1)))) {
      return scaled(text, number, unit.value, std::numeric_limits<uint64_t>::max());
    }
  }
  return badText(text, kAccepted);
}

std::string formatByteSize(uint64_t bytes) {
  return bytes == 0 ? "0B" : formatExact(bytes, kByteUnits);
}

Result<std::chrono::nanoseconds> parseDuration(std::string_view text) {
  constexpr std::string_view kAccepted =
      "a duration such as 500ms, 30s, 2m or a number of seconds (units ns, us, ms, s, m, h)";
  std::string_view suffix;
  PEERLANE_ASSIGN(uint64_t number, splitNumber(text, kAccepted, suffix));
  if (suffix.empty()) suffix = "s";
  for (const Unit& unit : kTimeUnits) {
    if (suffix != unit.name) continue;
    PEERLANE_ASSIGN(uint64_t value,
                    scaled(text, number, unit.value, std::numeric_limits<int64_t>::max()));
    return std::chrono::nanoseconds(static_cast<int64_t>(value));
  }
  return badText(text, kAccepted);
}

std::string formatDuration(std::chrono::nanoseconds duration) {
  PEERLANE_CHECK(duration.count() >= 0);
  if (duration.count() == 0) return "0s";
  return formatExact(static_cast<uint64_t>(duration.count()), kTimeUnits);
}

std::string encodeHex(std::span<const std::byte> bytes) {
  std::string text;
  text.reserve(bytes.size() * 2);
  for (std::byte byte : bytes) {
    text += kHexDigits[std::to_integer<unsigned>(byte) >> 4];
    text += kHexDigits[std::to_integer<unsigned>(byte) & 15];
  }
  return text;
}

Result<std::vector<std::byte>> decodeHex(std::string_view text) {
  if (text.size() % 2 != 0) {
    return Status(Code::kInvalidArgument,
                  "not hex: " + std::to_string(text.size()) + " digits, an even number is needed");
  }
  std::vector<std::byte> bytes;
  bytes.reserve(text.size() / 2);
  int high = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const int digit = digitOf({kHexDigits, 16}, lower(text[i]));
    if (digit < 0) return badCharacter("hex", i);
    if (i % 2 == 0) {
      high = digit;
    } else {
      bytes.push_back(static_cast<std::byte>(high << 4 | digit));
    }
  }
  return bytes;
}

std::string encodeBase64Url(std::span<const std::byte> bytes) {
  std::string text;
  text.reserve((bytes.size() * 4 + 2) / 3);
  uint32_t bits = 0;  // pending bits, right-aligned
  int pending = 0;
  for (std::byte byte : bytes) {
    bits = (bits << 8 | std::to_integer<uint32_t>(byte)) & 0xffff;
    for (pending += 8; pending >= 6; pending -= 6)
      text += kBase64Digits[bits >> (pending - 6) & 63];
  }
  if (pending > 0) text += kBase64Digits[bits << (6 - pending) & 63];
  return text;
}

Result<std::vector<std::byte>> decodeBase64Url(std::string_view text) {
  if (text.size() % 4 == 1) {
    return Status(Code::kInvalidArgument, "not base64url: " + std::to_string(text.size()) +
                                              " characters make no whole bytes");
  }
  std::vector<std::byte> bytes;
  bytes.reserve(text.size() * 3 / 4);
  uint32_t bits = 0;
  int pending = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const int digit = digitOf({kBase64Digits, 64}, text[i]);
    if (digit < 0) return badCharacter("base64url", i);
    bits = (bits << 6 | static_cast<uint32_t>(digit)) & 0xffff;
    pending += 6;
    if (pending >= 8) {
      pending -= 8;
      bytes.push_back(static_cast<std::byte>(bits >> pending & 0xff));
    }
  }
  if ((bits & ((1u << pending) - 1)) != 0) {
    return Status(Code::kInvalidArgument,
                  "not base64url: the last character has bits beyond the last byte");
  }
  return bytes;
}

std::string quoted(std::string_view text, std::size_t maxBytes) {
  std::string out = "\"";
  for (char c : text.substr(0, maxBytes)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      out += "\\x";
      out += kHexDigits[byte >> 4];
      out += kHexDigits[byte & 15];
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  if (text.size() > maxBytes) out += "...";
  return out += '"';
}

}  // namespace peerlane
