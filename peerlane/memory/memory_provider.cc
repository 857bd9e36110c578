// SPDX-License-Identifier: Apache-2.0
#include "peerlane/memory/memory_provider.h"

#include <cstdint>

namespace peerlane {

Result<MemoryDescription> MemoryProviders::classify(const void* pointer, size_t bytes) {
  if (pointer == nullptr || bytes == 0)
    return Status(Code::kInvalidArgument,
                  "memory to register: null pointer or 0 bytes; need at least 1 byte");
  if (reinterpret_cast<uintptr_t>(pointer) > UINTPTR_MAX - bytes)
    return Status(Code::kInvalidArgument, "memory to register: " + std::to_string(bytes) +
                                              " bytes run past the end of the address space");
  for (const auto& provider : providers_) {
    PEERLANE_ASSIGN(std::optional<MemoryDescription> found, provider->classify(pointer, bytes));
    if (found) return std::move(*found);
  }
  return Status(Code::kInvalidArgument,
                "no memory provider of this context owns the given pointer");
}

Result<std::optional<MemoryExtent>> MemoryProviders::extentOf(const void* pointer, size_t bytes) {
  for (const auto& provider : providers_) {
    PEERLANE_ASSIGN(std::optional<MemoryExtent> found, provider->extentOf(pointer, bytes));
    if (found) return found;
  }
  return std::optional<MemoryExtent>();
}

Result<std::unique_ptr<Allocation>> MemoryProviders::allocate(size_t bytes,
                                                              const AllocateOptions& options) {
  if (bytes == 0) return Status(Code::kInvalidArgument, "allocate: 0 bytes; need at least 1");
  for (const auto& provider : providers_) {
    auto made = provider->allocate(bytes, options);
    if (made.isOk() || made.status().code() != Code::kNotSupported) return made;
  }
  return Status(Code::kNotSupported,
                "no memory provider allocates on " + options.device.toString());
}

}  // namespace peerlane
