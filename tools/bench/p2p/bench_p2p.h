// SPDX-License-Identifier: Apache-2.0
//
// `bench connect --api p2p`: the cost of a communicator of the C API: the first and every further
// set-up between two processes, host and device memory, descriptors. Confined to one thread.
#pragma once

#include <iosfwd>

#include "tools/bench/sides/bench_options.h"

namespace peerlane::bench {

// Makes a process of its own for the other side, so no GPU may have been used before. Errors:
// kInvalidArgument (options that it lacks), those of the C API.
Status runP2pBench(const BenchOptions& options, std::ostream& out);

}  // namespace peerlane::bench
