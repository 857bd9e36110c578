// SPDX-License-Identifier: Apache-2.0
//
// FabricProbe: whether memory can travel by fabric handle on this machine. The driver's attribute
// of a GPU does not decide it: some GPUs create such memory but do not export it, some refuse it
// because there is no IMEX channel. So the probe creates 2 MiB, exports them and imports them
// again. Any thread; does not wait for a GPU.
#pragma once

#include "peerlane/core/status.h"
#include "peerlane/os/cuda.h"

namespace peerlane {

// OK: all three worked. Else kNotSupported with the call that failed. The probe runs once for each
// GPU of this process, and later calls return the same answer. kOutOfMemory: the probe could not
// run; the next call tries again.
Status tryFabric(const cuda::PrimaryContext& gpu);
// OK where memory of one of `gpus` can.
Status tryFabric(const cuda::Gpus& gpus);

}  // namespace peerlane
