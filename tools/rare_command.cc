// SPDX-License-Identifier: Apache-2.0
#include "tools/rare_command.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "tools/report/failure_report.h"

namespace peerlane {
namespace {

// Returns only when it could not.
Status becomeProgram(const std::string& command, char** arguments) {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return Status::system(error.value(), "read /proc/self/exe");
  const std::string program = self.parent_path() / ("peerlane-" + command);
  ::execv(program.c_str(), arguments);
  return Status::system(errno, command +
                                   " is a program of its own, which `make build` builds, and " +
                                   program + " could not be started");
}

}  // namespace

void addRareCommand(CLI::App& app, const std::string& name, const std::string& description,
                    char** arguments, int& exitCode) {
  CLI::App* command = app.add_subcommand(name, description);
  // Options and --help are for the other program.
  command->prefix_command();
  command->set_help_flag();
  command->callback(
      [name, arguments, &exitCode] { exitCode = reportFailure(becomeProgram(name, arguments)); });
}

}  // namespace peerlane
