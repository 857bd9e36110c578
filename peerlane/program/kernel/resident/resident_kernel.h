// SPDX-License-Identifier: Apache-2.0
//
// Resident kernel: launches the kernel of the resident port (program/ring/resident_port_device.h).
// Any thread may call; the launch goes to the caller's current device, which must be the stream's.
#pragma once

#include "peerlane/core/status.h"
#include "peerlane/program/ring/resident_port_device.h"

namespace peerlane::kernel {

struct ResidentLaunch {
  port::ResidentJob job;
  uint32_t blocks = 8;
  void* stream = nullptr;  // cudaStream_t; all launches of one state go to one
};

// Makes the kernel resident in memory on the current device, as loadCopyKernels() does.
Status loadResidentKernel();
// Errors: System.
Status launchResident(const ResidentLaunch& launch);

}  // namespace peerlane::kernel
