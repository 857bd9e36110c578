// SPDX-License-Identifier: Apache-2.0
//
// `peerlane topo`: what this machine is made of and how far its devices are from each other.
#pragma once

namespace CLI {  // NOLINT(readability-identifier-naming): the name is CLI11's
class App;
}

namespace peerlane {

// Registers the command; running it sets `exitCode`. Requires: both outlive the parsing of the
// arguments.
void addTopoCommand(CLI::App& app, int& exitCode);

}  // namespace peerlane
