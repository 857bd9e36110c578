// SPDX-License-Identifier: Apache-2.0
//
// ExecutorAbilities: what an executor can do: which ops, which words and compares, and which
// memory it reaches. Executors are uniform in meaning, not in ability: what one lacks is refused
// when a program is made for it, by name. Plain value.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "peerlane/core/status.h"
#include "peerlane/program/model/program.h"

namespace peerlane {

struct ExecutorAbilities {
  // A set of the values of an enumeration.
  template <typename T>
  class Set {
   public:
    constexpr Set() = default;
    constexpr Set(std::initializer_list<T> all) {
      for (const T one : all) bits_ |= bitOf(one);
    }
    constexpr bool has(T one) const { return (bits_ & bitOf(one)) != 0; }
    constexpr void remove(T one) { bits_ &= ~bitOf(one); }

   private:
    static constexpr uint64_t bitOf(T one) { return uint64_t{1} << static_cast<unsigned>(one); }
    uint64_t bits_ = 0;
  };

  const char* name = "";  // for sentences
  Set<OpCode> ops{};
  Set<Width> storeWidths{};
  Set<Width> waitWidths{};
  Set<Compare> compares{};
  // It copies between the program's memory and memory of peers that is mapped here. Else it reaches
  // the words of the library alone.
  bool reachesMemory = false;

  // A thread of the CPU: everything, in memory of the host.
  static constexpr ExecutorAbilities cpu() {
    return {.name = "a thread of the CPU",
            .ops = {OpCode::kCopy, OpCode::kCopyList, OpCode::kStore, OpCode::kAdd64, OpCode::kWait,
                    OpCode::kFence, OpCode::kFlush},
            .storeWidths = {Width::k32, Width::k64},
            .waitWidths = {Width::k32, Width::k64},
            .compares = {Compare::kGreaterEqual, Compare::kEqual, Compare::kAnd, Compare::kNor},
            .reachesMemory = true};
  }

  // kNotSupported with the first op, width or compare of the program that is missing.
  Status check(const Program& program) const;
};

}  // namespace peerlane
