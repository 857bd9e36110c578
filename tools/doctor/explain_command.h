// SPDX-License-Identifier: Apache-2.0
//
// `peerlane explain`: how bytes would get from one memory to another, and why not otherwise.
#pragma once

namespace CLI {  // NOLINT(readability-identifier-naming): the name is CLI11's
class App;
}

namespace peerlane {

// Registers the command; running it sets `exitCode`. Requires: both outlive the parsing of the
// arguments.
void addExplainCommand(CLI::App& app, int& exitCode);

}  // namespace peerlane
