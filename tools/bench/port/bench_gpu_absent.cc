// SPDX-License-Identifier: Apache-2.0
//
// In place of the GPU benchmark in builds without CUDA.
#include "tools/bench/gpu/bench_gpu.h"
#include "tools/bench/gpu/bench_gpu_child.h"
#include "tools/bench/port/bench_port.h"

namespace peerlane::bench {

Status runGpuBench(const BenchOptions&, std::ostream&) {
  return Status(Code::kNotSupported,
                "this build has no CUDA: --device cuda needs one configured with "
                "-DPEERLANE_CUDA=on");
}

Status runPortBench(const BenchOptions&, std::ostream&) {
  return Status(Code::kNotSupported,
                "this build has no CUDA: bench port needs one configured with -DPEERLANE_CUDA=on");
}

int runGpuBenchChild(int) {
  return 2;
}

}  // namespace peerlane::bench
