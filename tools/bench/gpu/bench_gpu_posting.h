// SPDX-License-Identifier: Apache-2.0
//
// Rows of the host's time in posts: lists of 16384 blocks, one piece of each size, and one small
// piece after rests. Confined to one thread.
#pragma once

#include "tools/bench/gpu/bench_gpu_pair.h"
#include "tools/bench/gpu/bench_gpu_report.h"

namespace peerlane::bench {

// `bench post` on GPUs. Rows that cannot be measured are reported as failed. Errors of this and of
// addGpuPostedLists(): kPeerLost.
Status runGpuPosting(GpuPair& pair, GpuReport& report);
uint64_t gpuPostingRegionBytes();

// 16384 blocks of 4 KiB on a grid.
GpuCase gpuPostedList(GpuPosting posting);
// Prepared, by fresh numbers, and as one call: on a grid, off any, and of many sizes.
Status addGpuPostedLists(GpuPair& pair, GpuReport& report);

}  // namespace peerlane::bench
