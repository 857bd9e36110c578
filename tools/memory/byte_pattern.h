// SPDX-License-Identifier: Apache-2.0
//
// Byte patterns for proofs: each seed names an endless sequence. Bytes written with one seed and
// read with another differ nearly everywhere, also when they are shifted. Not random in any
// stronger sense. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace peerlane {

// Writes the bytes [position, position + bytes.size()) of the sequence.
void fillPattern(std::span<std::byte> bytes, uint64_t seed, uint64_t position = 0);
// Bytes that are not what fillPattern would have written.
uint64_t countWrong(std::span<const std::byte> bytes, uint64_t seed, uint64_t position = 0);

}  // namespace peerlane
