// SPDX-License-Identifier: Apache-2.0
//
// The program peerlane-bench, which `peerlane bench` becomes; it reads the same command line.
#include "tools/bench/bench_command.h"
#include "tools/command_line.h"

int main(int count, char** arguments) {
  return peerlane::runCommandLine(count, arguments, peerlane::addBenchCommand);
}
