// SPDX-License-Identifier: Apache-2.0
//
// Bytes that tell their place, different for every seed: a test fills with them and finds the first
// one that is wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace peerlane {

inline std::byte patternByte(size_t index, uint64_t seed) {
  return static_cast<std::byte>((index * 31 + index / 251 + seed * 101 + 7) & 0xff);
}

inline void fillPattern(std::span<std::byte> bytes, uint64_t seed) {
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = patternByte(i, seed);
}

// The first index that does not carry the pattern, or the size.
inline size_t firstWrong(std::span<const std::byte> bytes, uint64_t seed) {
  for (size_t i = 0; i < bytes.size(); ++i)
    if (bytes[i] != patternByte(i, seed)) return i;
  return bytes.size();
}

}  // namespace peerlane
