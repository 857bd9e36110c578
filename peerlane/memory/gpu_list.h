// SPDX-License-Identifier: Apache-2.0
//
// The GPUs that this process sees, for programs that let their users choose one. There in every
// build. Looking makes no CUDA context and uses no GPU memory. Plain values; thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "peerlane/core/status.h"

namespace peerlane {

struct Gpu {
  int index = 0;  // Device::index: as the driver counts in this process (CUDA_VISIBLE_DEVICES)
  std::string name{};
  std::string busId{};  // "0000:17:00.0"
  std::string uuid{};   // "GPU-5ebe9f43-...": the same in every process
  uint64_t memoryBytes = 0;
  int computeMajor = 0;  // compute capability
  int computeMinor = 0;
  bool exportsDescriptors = false;  // memory of Context::allocate can travel to other processes
  bool fabricHandles = false;       // the driver says that it has them; tryFabricHandles tells more
};

// kNotSupported with the reason: no CUDA in this build, no driver or one that is too old, no GPU.
Result<std::vector<Gpu>> listGpus();

// Whether memory of that GPU travels by fabric handle: 2 MiB are made so, exported and imported
// again. kNotSupported with what failed: most machines without an IMEX channel refuse it whatever
// the driver says. Makes a CUDA context there, for as long as it takes. That it works between
// processes is unverified: no machine with such a channel has run this yet.
Status tryFabricHandles(int gpu);

// "13.0 (driver 13.0)": the CUDA runtime of this build and what the driver can do, or why there is
// none. For people.
std::string cudaVersionText();

}  // namespace peerlane
