// SPDX-License-Identifier: Apache-2.0
#include "tools/memory/byte_pattern.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace peerlane {
namespace {

// Spreads neighbouring seeds over the whole range, so that no sequence is a shifted copy of
// another.
uint64_t spread(uint64_t seed) {
  seed = (seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9ull;
  seed = (seed ^ (seed >> 27)) * 0x94D049BB133111EBull;
  return seed ^ (seed >> 31);
}

uint64_t wordAt(uint64_t start, uint64_t index) {
  const uint64_t product = (start + index) * 0x9E3779B97F4A7C15ull;
  return product ^ (product >> 32);
}

// Calls fn(bytes, word's bytes) for each run of up to 8 bytes that lies inside one word.
template <typename Bytes, typename Fn>
void eachWord(Bytes bytes, uint64_t seed, uint64_t position, Fn fn) {
  const uint64_t start = spread(seed);
  size_t done = 0;
  while (done < bytes.size()) {
    const uint64_t at = position + done;
    const size_t inside = at % 8;
    const size_t run = std::min<size_t>(8 - inside, bytes.size() - done);
    const uint64_t word = wordAt(start, at / 8) >> (8 * inside);
    fn(bytes.data() + done, run, word);
    done += run;
  }
}

static_assert(std::endian::native == std::endian::little);

}  // namespace

void fillPattern(std::span<std::byte> bytes, uint64_t seed, uint64_t position) {
  eachWord(bytes, seed, position, [](std::byte* at, size_t run, uint64_t word) {
    if (run == 8)
      std::memcpy(at, &word, 8);  // a size the compiler knows: one store
    else
      std::memcpy(at, &word, run);
  });
}

uint64_t countWrong(std::span<const std::byte> bytes, uint64_t seed, uint64_t position) {
  uint64_t wrong = 0;
  eachWord(bytes, seed, position, [&wrong](const std::byte* at, size_t run, uint64_t word) {
    uint64_t found = 0;
    if (run == 8) {
      std::memcpy(&found, at, 8);
      if (found == word) return;
    } else {
      std::memcpy(&found, at, run);
    }
    for (size_t i = 0; i < run; ++i)
      if (((found ^ word) >> (8 * i) & 0xFF) != 0) ++wrong;
  });
  return wrong;
}

}  // namespace peerlane
