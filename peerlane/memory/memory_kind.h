// SPDX-License-Identifier: Apache-2.0
//
// MemoryKind: what a link must know of memory to say whether it reaches it: where the memory is,
// how it can leave its process, and whether it is in one piece. Plain values; numbers are wire
// format, and a number that is not known here is refused by name, never taken for another one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace peerlane {

enum class MemoryPlace : uint8_t {
  kHost = 0,
  kCuda = 1,  // a GPU's
  kPci = 2,   // another PCI device's
  kLent = 3,  // lent by the context that grants it; its owner is RegionGrant::owner
};
inline constexpr size_t kMemoryPlaces = 4;

// How another process, or a device that is no processor of this one, comes to the memory.
enum class MemoryExport : uint8_t {
  kNone = 0,          // not at all: an agent of its own process, or process_vm_*, must copy
  kDescriptor = 1,    // a file descriptor that can be mapped (memfd, CUDA VMM)
  kLegacyHandle = 2,  // a CUDA IPC handle (cudaMalloc)
  kFabricHandle = 3,  // a CUDA fabric handle (VMM, unverified)
  kPool = 4,          // the descriptor of a CUDA pool, and a handle of the allocation
  kDmaBuf = 5,        // a dma-buf
  kKey = 6,           // a key of the device that reaches it
};
inline constexpr size_t kMemoryExports = 7;

enum class MemoryShape : uint8_t {
  kRange = 0,
  kChunks = 1,  // several allocations, side by side in its process, each exported by itself
};
inline constexpr size_t kMemoryShapes = 2;

struct MemoryKind {
  MemoryPlace place = MemoryPlace::kHost;
  MemoryExport exported = MemoryExport::kNone;
  MemoryShape shape = MemoryShape::kRange;

  // The kinds that providers of this library make.
  static const MemoryKind kPrivate;
  static const MemoryKind kShared;
  static const MemoryKind kCudaPrivate;
  static const MemoryKind kCudaDescriptor;
  static const MemoryKind kCudaHandle;
  static const MemoryKind kCudaPool;
  static const MemoryKind kCudaFabric;
  static const MemoryKind kCudaChunks;
  static const MemoryKind kCudaFabricChunks;

  friend bool operator==(const MemoryKind&, const MemoryKind&) = default;
  // For people: "host memory by descriptor", "CUDA memory in chunks by fabric handle".
  std::string name() const;
  // Empty for numbers that this version does not know.
  static std::optional<MemoryKind> of(uint8_t place, uint8_t exported, uint8_t shape);
};

inline constexpr MemoryKind MemoryKind::kPrivate{};
inline constexpr MemoryKind MemoryKind::kShared{.exported = MemoryExport::kDescriptor};
inline constexpr MemoryKind MemoryKind::kCudaPrivate{.place = MemoryPlace::kCuda};
inline constexpr MemoryKind MemoryKind::kCudaDescriptor{.place = MemoryPlace::kCuda,
                                                        .exported = MemoryExport::kDescriptor};
inline constexpr MemoryKind MemoryKind::kCudaHandle{.place = MemoryPlace::kCuda,
                                                    .exported = MemoryExport::kLegacyHandle};
inline constexpr MemoryKind MemoryKind::kCudaPool{.place = MemoryPlace::kCuda,
                                                  .exported = MemoryExport::kPool};
inline constexpr MemoryKind MemoryKind::kCudaFabric{.place = MemoryPlace::kCuda,
                                                    .exported = MemoryExport::kFabricHandle};
inline constexpr MemoryKind MemoryKind::kCudaChunks{.place = MemoryPlace::kCuda,
                                                    .exported = MemoryExport::kDescriptor,
                                                    .shape = MemoryShape::kChunks};
inline constexpr MemoryKind MemoryKind::kCudaFabricChunks{.place = MemoryPlace::kCuda,
                                                          .exported = MemoryExport::kFabricHandle,
                                                          .shape = MemoryShape::kChunks};

constexpr bool isMappable(const MemoryKind& kind) {
  return kind.exported != MemoryExport::kNone;
}
constexpr bool isCuda(const MemoryKind& kind) {
  return kind.place == MemoryPlace::kCuda;
}
constexpr bool isInChunks(const MemoryKind& kind) {
  return kind.shape == MemoryShape::kChunks;
}
constexpr bool isByFabric(const MemoryKind& kind) {
  return kind.exported == MemoryExport::kFabricHandle;
}

// The kinds that providers of this library make.
std::span<const MemoryKind> knownKinds();

// "host", "CUDA", ...
const char* placeName(MemoryPlace place);

}  // namespace peerlane
