// SPDX-License-Identifier: Apache-2.0
//
// The program peerlane-nixl, which `peerlane nixl` becomes; it reads the same command line.
#include "tools/command_line.h"
#include "tools/nixl/nixl_command.h"

int main(int count, char** arguments) {
  return peerlane::runCommandLine(count, arguments, peerlane::addNixlCommand);
}
