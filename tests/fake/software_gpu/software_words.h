// SPDX-License-Identifier: Apache-2.0
//
// What stream memory operations can do here. SOFTWARE_GPU_MEMOPS in the environment: "short", no
// words of 64 bits; "no-nor", no waits that compare by nor. Any thread.
#pragma once

namespace peerlane::softgpu {

bool hasLongWordOps();
bool hasNorWaits();
// As SOFTWARE_GPU_NIC_WRITES says (software_nic.h).
bool hasWordFlush(int device);

}  // namespace peerlane::softgpu
