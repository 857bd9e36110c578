// SPDX-License-Identifier: Apache-2.0
//
// VmmHandle: what a VMM allocation (cuMemCreate) travels as to another process: a descriptor where
// it was made for that, else a fabric handle, which is bytes and holds nothing. Fabric handles are
// written and probed (fabric_probe.h), but unverified: no machine that has them has run this yet.
// Plain values and functions; any thread; none of them waits for a GPU.
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

// As what an allocation may leave its process, by the way in which it was made.
struct VmmKind {
  bool isVmm = false;
  bool byDescriptor = false;
  bool byFabric = false;
};

// What the driver says of the allocation at `address`.
VmmKind vmmKindOf(const void* address);

// A descriptor of the VMM allocation at `address`; an invalid one when it is none, or was not made
// for export so.
Result<Fd> exportDescriptor(const void* address);
// Its fabric handle; empty when it is none, or was not made for export so. An error where the
// driver makes none all the same, as without an IMEX channel.
Result<std::vector<std::byte>> exportFabric(const void* address);

// Our reference on what `handle` stands for (CUmemGenericAllocationHandle), which the caller
// releases. Errors: kCorrupt (a fabric handle of another length), kSystem, kNotSupported.
Result<uint64_t> importVmm(const VmmHandle& handle);

// Whether an imported allocation of any kind has as many bytes as its owner says: kCorrupt if not.
// `address` is its first byte; a context of a GPU that reaches it is current.
Status checkImportedBytes(const void* address, size_t said);

}  // namespace peerlane
