// SPDX-License-Identifier: Apache-2.0
//
// MemoryKind: how the memory of a region can be reached from elsewhere.
#pragma once

#include <cstdint>

namespace peerlane {

// How the owner's memory can be reached. Numbers are wire format.
enum class MemoryKind : uint8_t {
  kPrivate = 0,           // heap or private mappings: by process_vm_* or staged
  kShared = 1,            // backed by a descriptor that can be mapped elsewhere
  kCudaDescriptor = 2,    // GPU memory that travels as a descriptor (VMM)
  kCudaHandle = 3,        // GPU memory that travels as a legacy IPC handle (cudaMalloc)
  kCudaPrivate = 4,       // GPU memory that no other process can map (MemoryDescription::whyNot)
  kCudaChunks = 5,        // GPU memory of several allocations side by side, each by a descriptor
  kCudaPool = 6,          // GPU memory of a pool: its descriptor, and a handle of the allocation
  kCudaFabric = 7,        // GPU memory that travels as a fabric handle (VMM, unverified)
  kCudaFabricChunks = 8,  // as kCudaChunks, each by a fabric handle
};

inline constexpr MemoryKind kLastMemoryKind = MemoryKind::kCudaFabricChunks;

constexpr bool isMappable(MemoryKind kind) {
  return kind != MemoryKind::kPrivate && kind != MemoryKind::kCudaPrivate;
}

constexpr bool isCuda(MemoryKind kind) {
  return kind >= MemoryKind::kCudaDescriptor;
}
constexpr bool isInChunks(MemoryKind kind) {
  return kind == MemoryKind::kCudaChunks || kind == MemoryKind::kCudaFabricChunks;
}
constexpr bool isByFabric(MemoryKind kind) {
  return kind == MemoryKind::kCudaFabric || kind == MemoryKind::kCudaFabricChunks;
}

}  // namespace peerlane
