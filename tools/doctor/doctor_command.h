// SPDX-License-Identifier: Apache-2.0
//
// `peerlane doctor`: what works here, what does not, why, and what to do; or what another process
// waits for.
#pragma once

namespace CLI {  // NOLINT(readability-identifier-naming): the name is CLI11's
class App;
}

namespace peerlane {

// Registers the command; running it sets `exitCode`. Requires: both outlive the parsing of the
// arguments.
void addDoctorCommand(CLI::App& app, int& exitCode);

}  // namespace peerlane
