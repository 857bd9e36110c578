// SPDX-License-Identifier: Apache-2.0
//
// FabricProbe: whether memory travels by fabric handle here. What the driver says of a GPU does not
// tell: some create such memory and export none of it, some refuse it for want of an IMEX channel.
// So 2 MiB are created, exported and imported again. Any thread; does not wait for a GPU.
#pragma once

#include "peerlane/core/status.h"
#include "peerlane/os/cuda.h"

namespace peerlane {

// OK: all three worked. Else kNotSupported with the call that failed; tried once for each GPU of
// this process, and the answer stays. kOutOfMemory: it could not be tried.
Status tryFabric(const cuda::PrimaryContext& gpu);
// OK where one of them can.
Status tryFabric(const cuda::Gpus& gpus);

}  // namespace peerlane
