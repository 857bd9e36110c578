// SPDX-License-Identifier: Apache-2.0
//
// Words in memory that two sides share: how the host loads, stores and compares them. Plain
// functions on addresses, because the words live in mapped memory and not in C++ objects of this
// process.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "peerlane/program/model/op.h"

namespace peerlane {

inline uint64_t loadWord(const std::byte* at, Width width) {
  // Acquire: pairs with the release store that wrote the word.
  if (width == Width::k32)
    return std::atomic_ref<const uint32_t>(*reinterpret_cast<const uint32_t*>(at))
        .load(std::memory_order_acquire);
  return std::atomic_ref<const uint64_t>(*reinterpret_cast<const uint64_t*>(at))
      .load(std::memory_order_acquire);
}

// `order` is any order a store may have.
inline void storeWord(std::byte* at, Width width, uint64_t value, std::memory_order order) {
  if (width == Width::k32)
    std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(at))
        .store(static_cast<uint32_t>(value), order);
  else
    std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(at)).store(value, order);
}

inline void addWord(std::byte* at, uint64_t value) {
  std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(at))
      .fetch_add(value, std::memory_order_seq_cst);
}

inline bool satisfies(uint64_t word, Compare compare, uint64_t operand, Width width) {
  switch (compare) {
    case Compare::kGreaterEqual:
      if (width == Width::k32)
        return static_cast<int32_t>(static_cast<uint32_t>(word - operand)) >= 0;
      return static_cast<int64_t>(word - operand) >= 0;
    case Compare::kEqual: return word == operand;
    case Compare::kAnd: return (word & operand) != 0;
    case Compare::kNor:
      return (~(word | operand) & (width == Width::k32 ? 0xffffffffu : ~uint64_t{0})) != 0;
  }
  return false;
}

// A wait that ends like this was released, not satisfied: the lane is dead.
inline bool isPoison(uint64_t word) {
  return word >= kPoison && word < (kPoison << 1);
}

}  // namespace peerlane
