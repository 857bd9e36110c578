// SPDX-License-Identifier: Apache-2.0
//
// `peerlane bench OPERATION`: measures the library between two processes, and with --ceiling the
// raw limit of the machine in the same run. Confined to one thread.
#pragma once

#include <iosfwd>

#include "tools/bench_options.h"

namespace CLI {
class App;
}

namespace peerlane {

// Registers the command and the hidden one that its second process runs; running them sets
// `exitCode`. Requires: both outlive the parsing of the arguments.
void addBenchCommand(CLI::App& app, int& exitCode);

namespace bench {
// The benchmark itself, its table printed to `out`. Errors: those of the library, kCorrupt when a
// byte was wrong, kInternal when a ratio is above BenchReport::kMaxRatio (the JSON is written all
// the same).
Status runBench(BenchOptions options, std::ostream& out);
}  // namespace bench

}  // namespace peerlane
