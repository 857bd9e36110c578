// SPDX-License-Identifier: Apache-2.0
//
// `peerlane demo`: two processes move real data between their memories and prove that every byte
// arrived.
#pragma once

namespace CLI {  // NOLINT(readability-identifier-naming): the name is CLI11's
class App;
}

namespace peerlane {

// Registers the command; running it sets `exitCode`. Requires: both outlive the parsing of the
// arguments.
void addDemoCommand(CLI::App& app, int& exitCode);

}  // namespace peerlane
