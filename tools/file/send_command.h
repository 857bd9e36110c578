// SPDX-License-Identifier: Apache-2.0
//
// `peerlane send`: moves a file to the process that printed the ticket (`peerlane recv`).
#pragma once

namespace CLI {  // NOLINT(readability-identifier-naming): the name is CLI11's
class App;
}

namespace peerlane {

// Registers the command; running it sets `exitCode`. Requires: both outlive the parsing of the
// arguments.
void addSendCommand(CLI::App& app, int& exitCode);

}  // namespace peerlane
