// SPDX-License-Identifier: Apache-2.0
//
// Fuzz target: every text parser on the same input. What is accepted must come back from its
// formatter with the same value, and for the encodings as the same text.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "peerlane/core/status.h"
#include "peerlane/core/text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace peerlane;
  const std::string_view text(reinterpret_cast<const char*>(bytes), size);
  if (auto value = parseInteger(text, 5, 500)) PEERLANE_CHECK(*value >= 5 && *value <= 500);
  if (auto value = parseByteSize(text))
    PEERLANE_CHECK(*parseByteSize(formatByteSize(*value)) == *value);
  if (auto value = parseDuration(text)) {
    PEERLANE_CHECK(value->count() >= 0);
    PEERLANE_CHECK(*parseDuration(formatDuration(*value)) == *value);
  }
  if (auto value = decodeHex(text)) PEERLANE_CHECK(encodeHex(*value).size() == size);
  if (auto value = decodeBase64Url(text)) PEERLANE_CHECK(encodeBase64Url(*value) == text);
  const auto raw = std::as_bytes(std::span(bytes, size));
  const auto unhexed = decodeHex(encodeHex(raw));
  PEERLANE_CHECK(unhexed.isOk() && unhexed->size() == size);
  const auto decoded = decodeBase64Url(encodeBase64Url(raw));
  PEERLANE_CHECK(decoded.isOk() && decoded->size() == size);
  for (char c : quoted(text)) PEERLANE_CHECK(static_cast<unsigned char>(c) >= 0x20);
  return 0;
}
