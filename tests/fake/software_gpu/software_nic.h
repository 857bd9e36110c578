// SPDX-License-Identifier: Apache-2.0
//
// How devices in software see what a NIC writes into their memory. SOFTWARE_GPU_NIC_WRITES in the
// environment says what they report: "ordered" (default; for all devices), "owner" (for the device
// of the memory), "flush" (after cuFlushGPUDirectRDMAWrites), "memops" (by operations of streams
// alone), "never"; several of them, comma between, for one device after the other, the last for all
// that follow. A value that is not understood ends the program. Any thread.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace peerlane::softgpu {

int nicWritesOrdering(int device);
int nicFlushOptions(int device);
// What a device does that flushes.
void flushNicWritesNow();

}  // namespace peerlane::softgpu

// NOLINTBEGIN(readability-identifier-naming): beside CUDA's.
extern "C" {

CUresult cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget target,
                                    CUflushGPUDirectRDMAWritesScope scope);
// A NIC in software that keeps what it wrote to itself until then. Null: none.
void software_gpu_on_flush(void (*flush)());
// How often this process has flushed.
uint64_t software_gpu_flushes();

}  // extern "C"
// NOLINTEND(readability-identifier-naming)
