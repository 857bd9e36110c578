// SPDX-License-Identifier: Apache-2.0
//
// The frame of every program of the command line: reads the arguments, runs the command that they
// name, and says in one line on standard error why it could not. Confined to the main thread.
#pragma once

#include <functional>

namespace CLI {  // NOLINT(readability-identifier-naming): the name is CLI11's
class App;
}

namespace peerlane {

// `addCommands` registers the commands; one that runs sets `exitCode`. Returns the exit code of the
// process: 0 done, 1 failed, 2 the command line is wrong.
int runCommandLine(int count, char** arguments,
                   const std::function<void(CLI::App& app, int& exitCode)>& addCommands);

}  // namespace peerlane
