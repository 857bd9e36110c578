// SPDX-License-Identifier: Apache-2.0
//
// A command of `peerlane` that is a program of its own, peerlane-NAME in the same folder, because
// it takes long to build and the first commands of a new user do not need it.
#pragma once

#include <string>

namespace CLI {  // NOLINT(readability-identifier-naming): the name is CLI11's
class App;
}

namespace peerlane {

// Registers the command. When it is named this process becomes that program, which reads
// `arguments` again: all those of this process. Where the program is missing the command sets
// `exitCode`. Requires: the references outlive the parsing of the arguments.
void addRareCommand(CLI::App& app, const std::string& name, const std::string& description,
                    char** arguments, int& exitCode);

}  // namespace peerlane
