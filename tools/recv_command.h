// SPDX-License-Identifier: Apache-2.0
//
// `peerlane recv`: prints a ticket and receives one file.
#pragma once

namespace CLI {
class App;
}

namespace peerlane {

// Registers the command; running it sets `exitCode`. Requires: both outlive the parsing of the
// arguments.
void addRecvCommand(CLI::App& app, int& exitCode);

}  // namespace peerlane
