// SPDX-License-Identifier: Apache-2.0
//
// `bench --tune FILE`: from which size on which engine of this machine's GPUs is the fastest, as
// lines that PEERLANE_TUNE reads. Confined to one thread.
#pragma once

#include <string>

#include "tools/bench/gpu/bench_gpu_contest.h"
#include "tools/bench/gpu/bench_gpu_report.h"

namespace peerlane::bench {

uint64_t gpuTuneRegionBytes();
Status runGpuTune(GpuPair& pair, const std::string& file, GpuReport& report);

}  // namespace peerlane::bench
