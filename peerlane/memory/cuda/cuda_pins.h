// SPDX-License-Identifier: Apache-2.0
//
// CudaPins: which host memory of this process is pinned for GPUs, and by how many users. The driver
// pins each page once, in whole ranges, and does not count users. So this class counts them: a
// range that overlaps pinned ones shares those and pins the gaps. Memory that the program itself
// has pinned stays the program's to unpin. Not for memory that moves. One per process, because the
// driver's state is.
#pragma once

#include <cstddef>
#include <memory>

#include "peerlane/core/status.h"
#include "peerlane/memory/device_pin.h"
#include "peerlane/os/cuda.h"

namespace peerlane {

// Pins the pages of [address, +bytes) for every GPU of this process; devices then know them by the
// same address. Costs a fraction of a millisecond per MiB, and does not wait for a GPU. Any thread.
// Errors: kNotSupported (this GPU has other addresses for host memory), kUnavailable (the reclaimer
// is unpinning the range, which waits for a GPU), kOutOfMemory, kSystem with the driver's reason
// (read-only memory, device files).
Result<std::unique_ptr<DevicePin>> pinForCuda(
    std::byte* address, size_t bytes, const std::shared_ptr<const cuda::PrimaryContext>& gpu);

}  // namespace peerlane
