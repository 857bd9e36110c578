// SPDX-License-Identifier: Apache-2.0
//
// The child process of a GPU benchmark: does what the parent asks through the pipe, one request at
// a time, until the pipe ends. Confined to one thread.
#pragma once

namespace peerlane::bench {

// The name of the command that runs it, with the number of its pipe.
inline constexpr const char* kGpuChildCommand = "bench-gpu-child";

// Returns the process' exit code. `pipe`: the descriptor that the parent left open for it.
int runGpuBenchChild(int pipe);

}  // namespace peerlane::bench
