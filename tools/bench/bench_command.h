// SPDX-License-Identifier: Apache-2.0
//
// `peerlane bench OPERATION`: measures the library between two processes, and with --ceiling the
// raw limit of the machine in the same run. Confined to one thread.
#pragma once

namespace CLI {  // NOLINT(readability-identifier-naming): the name is CLI11's
class App;
}

namespace peerlane {

// Registers the command and the hidden one that its second process runs; running them sets
// `exitCode`. Requires: both outlive the parsing of the arguments.
void addBenchCommand(CLI::App& app, int& exitCode);

}  // namespace peerlane
