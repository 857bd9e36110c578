// SPDX-License-Identifier: Apache-2.0
//
// `peerlane nixl`: places Peerlane's back end in the NIXL of a Python, takes it out again, and
// tries it.
#pragma once

namespace CLI {  // NOLINT(readability-identifier-naming): the name is CLI11's
class App;
}

namespace peerlane {

// Registers the command; running it sets `exitCode`. Requires: both outlive the parsing of the
// arguments.
void addNixlCommand(CLI::App& app, int& exitCode);

}  // namespace peerlane
