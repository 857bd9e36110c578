// SPDX-License-Identifier: Apache-2.0
//
// LegacyProbe: how two processes find out whether legacy CUDA IPC handles lead from one to the
// other's memory. A handle names a process by its pid, which may be another process in another PID
// namespace: there a handle may fail to open, or open other memory. So the owner writes a random
// number into memory of its own, and the other process opens the handle and looks for that number.
// Plain functions; any thread.
#pragma once

#include <array>
#include <cstddef>

#include "peerlane/core/status.h"
#include "peerlane/os/cuda.h"

namespace peerlane {

// A handle, the owner's number of the allocation, and the random number.
inline constexpr size_t kLegacyProbeBytes = 64 + 8 + 16;
using LegacyProbe = std::array<std::byte, kLegacyProbeBytes>;

// The probe for memory of this process on `gpu`. The first call makes that memory: 16 bytes of
// cudaMalloc, which stay until the process ends. Errors: kOutOfMemory, kSystem; kUnavailable when
// the GPU is too busy.
Result<LegacyProbe> legacyProbeOn(const cuda::PrimaryContext& gpu);

// OK when one of `gpus` reads the owner's random number there. Else the reason: kNotSupported;
// kUnavailable when a GPU was too busy to look.
Status tryLegacyProbe(const LegacyProbe& probe, const cuda::Gpus& gpus);

}  // namespace peerlane
