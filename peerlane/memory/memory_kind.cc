// SPDX-License-Identifier: Apache-2.0
#include "peerlane/memory/memory_kind.h"

#include <array>

namespace peerlane {
namespace {

const char* exportName(MemoryExport exported) {
  switch (exported) {
    case MemoryExport::kNone: return "that is not exported";
    case MemoryExport::kDescriptor: return "by descriptor";
    case MemoryExport::kLegacyHandle: return "by legacy IPC handle";
    case MemoryExport::kFabricHandle: return "by fabric handle";
    case MemoryExport::kPool: return "of a pool";
    case MemoryExport::kDmaBuf: return "by dma-buf";
    case MemoryExport::kKey: return "by key";
  }
  return "by an unknown way";
}

}  // namespace

const char* placeName(MemoryPlace place) {
  switch (place) {
    case MemoryPlace::kHost: return "host";
    case MemoryPlace::kCuda: return "CUDA";
    case MemoryPlace::kPci: return "PCI device";
    case MemoryPlace::kLent: return "lent";
  }
  return "unknown";
}

std::span<const MemoryKind> knownKinds() {
  static constexpr std::array<MemoryKind, 9> kKnown{
      MemoryKind::kPrivate,        MemoryKind::kShared,     MemoryKind::kCudaPrivate,
      MemoryKind::kCudaDescriptor, MemoryKind::kCudaHandle, MemoryKind::kCudaPool,
      MemoryKind::kCudaFabric,     MemoryKind::kCudaChunks, MemoryKind::kCudaFabricChunks};
  return kKnown;
}

std::string MemoryKind::name() const {
  return std::string(placeName(place)) + " memory" +
         (shape == MemoryShape::kChunks ? " in chunks " : " ") + exportName(exported);
}

std::optional<MemoryKind> MemoryKind::of(uint8_t place, uint8_t exported, uint8_t shape) {
  if (place >= kMemoryPlaces || exported >= kMemoryExports || shape >= kMemoryShapes) return {};
  return MemoryKind{static_cast<MemoryPlace>(place), static_cast<MemoryExport>(exported),
                    static_cast<MemoryShape>(shape)};
}

}  // namespace peerlane
