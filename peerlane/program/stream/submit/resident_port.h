// SPDX-License-Identifier: Apache-2.0
//
// ResidentPort: the host's side of a resident kernel: a stream of its own, on which one launch
// follows the other when the proxy wants one. External synchronization required.
#pragma once

#include <memory>

#include "peerlane/os/cuda.h"
#include "peerlane/program/device/device_executor.h"

namespace peerlane::stream {

// Errors: kSystem.
Result<std::unique_ptr<ResidentPort>> makeResidentPort(
    std::shared_ptr<const cuda::PrimaryContext> gpu, port::ResidentState* state, uint64_t* left,
    uint32_t blocks);

}  // namespace peerlane::stream
