// SPDX-License-Identifier: Apache-2.0
//
// ElfVtables: the virtual functions of the classes in a shared object for x86-64, in their order,
// read from its symbols and relocations; nothing is loaded. The file may hold anything. Immutable
// after creation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "peerlane/core/status.h"

namespace peerlane {

class ElfVtables {
 public:
  // The symbols of one virtual function, mangled: several where functions were merged, none where
  // the file does not tell.
  using Symbols = std::vector<std::string>;

  // Lifetime: `file` outlives the result. Errors: kCorrupt (no ELF file, or a damaged one),
  // kNotSupported (for another machine, or without symbols).
  static Result<ElfVtables> read(std::span<const std::byte> file);

  // Names of the classes outside namespaces that have a table.
  std::vector<std::string> classes() const;
  // Those that a pointer to the first base of the class reaches, destructors included. Errors:
  // kInvalidArgument (no such class), kCorrupt.
  Result<std::vector<Symbols>> functions(const std::string& className) const;

 private:
  class Reader;
  struct Table {
    uint64_t address = 0;
    uint64_t bytes = 0;
  };
  struct Relocation {
    std::string_view symbol{};  // empty: `address` instead
    uint64_t address = 0;
  };
  struct Mapped {
    uint64_t address = 0;
    std::span<const std::byte> content{};
  };

  Symbols symbolsAt(uint64_t place) const;
  uint64_t wordAt(uint64_t address) const;

  std::map<std::string_view, Table> tables_;                     // by class
  std::map<uint64_t, std::vector<std::string_view>> functions_;  // by address
  std::map<uint64_t, Relocation> relocations_;                   // by the word that they fill
  std::vector<Mapped> mapped_;
};

}  // namespace peerlane
