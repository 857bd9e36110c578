// SPDX-License-Identifier: Apache-2.0
//
// How far Peerlane can use this machine's GPUs, and which settings hinder it. Makes a CUDA context
// where fabric handles have to be tried, else none. Values. Thread: any.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "peerlane/memory/gpu_list.h"
#include "tools/doctor/doctor_checks.h"
#include "tools/memory/device_bytes.h"

namespace peerlane {

// `onBus`: the names of GPUs that were found on PCI, with or without a driver.
std::vector<Finding> checkGpus(const std::string& onBus);

// The parts that need no GPU to be right about it.

// "580.95.05" in what /proc/driver/nvidia/version says; empty when there is none.
std::string driverRelease(const std::string& text);
// Whether the driver is new enough for the runtime of this build. `release`: as above.
Finding driverFinding(const CudaVersions& versions, const std::string& release);
// `tryHandles` is tryFabricHandles (peerlane/memory/gpu_list.h), asked where the driver says that
// it has such handles.
Finding fabricFinding(const std::vector<Gpu>& gpus, const std::function<Status(int)>& tryHandles);
// CUDA_DEVICE_MAX_CONNECTIONS; null: not set.
Finding queueFinding(const char* value);
// CUDA_MODULE_LOADING; null: not set.
Finding loadingFinding(const char* value);

}  // namespace peerlane
