// SPDX-License-Identifier: Apache-2.0
//
// Shared objects of others, which may be anything.
#include <cstddef>
#include <cstdint>
#include <span>

#include "tools/nixl/elf_vtable.h"
#include "tools/nixl/wheel_abi.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = std::as_bytes(std::span(data, size));
  if (const auto tables = peerlane::ElfVtables::read(file); tables.isOk()) {
    for (const std::string& name : tables->classes())
      if (const auto functions = tables->functions(name); functions.isOk())
        for (const auto& symbols : *functions)
          // A name that is read has no end in it.
          for (const std::string& symbol : symbols)
            if (symbol.find('\0') != std::string::npos) __builtin_trap();
  }
  (void)peerlane::checkEngines(file).isOk();
  return 0;
}
