// SPDX-License-Identifier: Apache-2.0
//
// Values as people and environment variables write them: integers, byte sizes, durations, hex,
// base64url. Each format's output is exact: the matching parser gives the same value back. Not for
// reports, where rounded numbers read better. Thread-safe: there is no state.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "peerlane/core/status.h"

namespace peerlane {

// Decimal digits only: no sign, no spaces, no prefix. Returns kInvalidArgument outside [low, high].
Result<uint64_t> parseInteger(std::string_view text, uint64_t low, uint64_t high);

// Bytes: "64", "512KiB", "64M", "1GiB". K, M, G and T are powers of 1024, in either case, with or
// without "iB"; "KB" and fractions are refused, because readers disagree on their value.
Result<uint64_t> parseByteSize(std::string_view text);
// The largest unit that divides `bytes`: "16MiB", "1000B", "0B".
std::string formatByteSize(uint64_t bytes);

// "500ms", "30s", "2m"; units ns, us, ms, s, m, h; a plain number is seconds. No sign, no fraction.
// At most about 292 years.
Result<std::chrono::nanoseconds> parseDuration(std::string_view text);
// The largest unit that divides `duration`: "30s", "1500ms", "0s". Requires: not negative.
std::string formatDuration(std::chrono::nanoseconds duration);

// Two lower-case digits per byte. The decoder takes both cases.
std::string encodeHex(std::span<const std::byte> bytes);
Result<std::vector<std::byte>> decodeHex(std::string_view text);

// RFC 4648 section 5 without padding. The decoder takes exactly what the encoder makes: padding,
// foreign characters and bits that belong to no byte are refused, so a value has one spelling.
// Errors name the place and never the text, which may be a secret.
std::string encodeBase64Url(std::span<const std::byte> bytes);
Result<std::vector<std::byte>> decodeBase64Url(std::string_view text);

// Input from outside, made fit for a message: quoted, control characters escaped, at most
// `maxBytes` of it.
std::string quoted(std::string_view text, std::size_t maxBytes = 80);

}  // namespace peerlane
