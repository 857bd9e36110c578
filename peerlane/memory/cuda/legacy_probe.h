// SPDX-License-Identifier: Apache-2.0
//
// LegacyProbe: how two processes find out whether legacy CUDA IPC handles lead from one to the
// other's memory. A handle names a process by its number, which means something else in another PID
// namespace: there a handle may not open, or open other memory. So the owner writes a random number
// into some memory of its own, and who has opened it looks for that number. Plain functions; any
// thread.
#pragma once

#include <array>
#include <cstddef>

#include "peerlane/core/status.h"
#include "peerlane/os/cuda.h"

namespace peerlane {

// A handle, the owner's number of the allocation, and the random number.
inline constexpr size_t kLegacyProbeBytes = 64 + 8 + 16;
using LegacyProbe = std::array<std::byte, kLegacyProbeBytes>;

// Memory of this process on `gpu` to look at, made when it is first asked for: 16 bytes of
// cudaMalloc, which stay until the process ends. Errors: kOutOfMemory, kSystem; kUnavailable when
// the GPU is too busy.
Result<LegacyProbe> legacyProbeOn(const cuda::PrimaryContext& gpu);

// OK when one of `gpus` finds there what the owner wrote. Else why not: kNotSupported; kUnavailable
// when a GPU was too busy to look.
Status tryLegacyProbe(const LegacyProbe& probe, const cuda::Gpus& gpus);

}  // namespace peerlane
