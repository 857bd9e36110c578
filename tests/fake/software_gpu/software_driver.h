// SPDX-License-Identifier: Apache-2.0
//
// The driver's calls of the software GPU, by name. No state.
#pragma once

#include <cuda.h>

namespace peerlane::softgpu {

// Null: the software GPU does not have it.
void* findDriverEntry(const char* name);

// Contexts are the devices' primary ones.
CUcontext contextOf(int device);
int deviceOf(CUcontext context);  // -1: no context

}  // namespace peerlane::softgpu
