// SPDX-License-Identifier: Apache-2.0
//
// The child process of a benchmark: does what the parent asks through the pipe, one request at a
// time, until the pipe ends. Confined to one thread.
#pragma once

namespace peerlane::bench {

// Returns the process' exit code. `pipe`: see BenchPair::kChildPipe.
int runBenchChild(int pipe);

}  // namespace peerlane::bench
