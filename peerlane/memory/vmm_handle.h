// SPDX-License-Identifier: Apache-2.0
//
// VmmHandle: the form in which a VMM allocation (cuMemCreate) travels to another process: a
// descriptor where the allocation was made for that, else a fabric handle, which is plain bytes and
// keeps no memory alive. Fabric handles are probed (fabric_probe.h), but unverified: this code has
// not yet run on a machine that has them. Plain values and functions; any thread; none of them
// waits for a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "peerlane/core/status.h"
#include "peerlane/os/fd.h"

namespace peerlane {

inline constexpr size_t kFabricHandleBytes = 64;

// One of the two.
struct VmmHandle {
  Fd fd{};
  std::vector<std::byte> fabric{};  // kFabricHandleBytes
};

// The forms in which an allocation may leave its process, as it was made.
struct VmmKind {
  bool isVmm = false;
  bool byDescriptor = false;
  bool byFabric = false;
};

// The forms that the driver reports for the allocation at `address`.
VmmKind vmmKindOf(const void* address);

// A descriptor of the VMM allocation at `address`. Invalid when there is no such allocation, or it
// was not made for export by descriptor.
Result<Fd> exportDescriptor(const void* address);
// The fabric handle of the VMM allocation at `address`. Empty when there is no such allocation, or
// it was not made for export by fabric handle. An error where it was, and the driver still makes
// none, as without an IMEX channel.
Result<std::vector<std::byte>> exportFabric(const void* address);

// A reference (CUmemGenericAllocationHandle) on the allocation that `handle` stands for. The caller
// must release it. Errors: kCorrupt (a fabric handle of another length), kSystem, kNotSupported.
Result<uint64_t> importVmm(const VmmHandle& handle);

// Whether an imported allocation of any kind has as many bytes as its owner says: kCorrupt if not.
// `address` is its first byte; a context of a GPU that reaches it is current.
Status checkImportedBytes(const void* address, size_t said);

}  // namespace peerlane
