// SPDX-License-Identifier: Apache-2.0
//
// `peerlane recv`: prints a ticket and receives one file.
#pragma once

namespace CLI {  // NOLINT(readability-identifier-naming): the name is CLI11's
class App;
}

namespace peerlane {

// Registers the command; running it sets `exitCode`. Requires: both outlive the parsing of the
// arguments.
void addRecvCommand(CLI::App& app, int& exitCode);

}  // namespace peerlane
