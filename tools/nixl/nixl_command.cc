// SPDX-License-Identifier: Apache-2.0
#include "tools/nixl/nixl_command.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "tools/nixl/nixl_wheel.h"
#include "tools/nixl/plugin_folder.h"
#include "tools/nixl/plugin_parts.h"
#include "tools/nixl/transfer_check.h"
#include "tools/nixl/wheel_abi.h"
#include "tools/report/failure_report.h"
#include "tools/report/text_table.h"

namespace peerlane {
namespace {

struct NixlOptions {
  std::string python = "python3";
  std::string plugin;
};

std::string counted(size_t count, const char* one, const char* many) {
  return count == 1 ? std::string("1 ") + one : std::to_string(count) + " " + many;
}

void warnOfOtherFolder() {
  const char* other = std::getenv("NIXL_PLUGIN_DIR");
  if (other != nullptr)
    tellUser(
        fmt::format("peerlane: NIXL_PLUGIN_DIR is \"{}\": while it is set, NIXL looks for "
                    "plug-ins there and nowhere else",
                    other));
}

// Of all wheels, before anything is placed in one.
Result<std::vector<NixlWheel>> fittingWheels(const std::string& python) {
  PEERLANE_ASSIGN(const auto wheels, findNixlWheels(python));
  for (const NixlWheel& wheel : wheels) PEERLANE_RETURN_IF_ERROR(checkWheel(wheel));
  return wheels;
}

CommandEnd install(const NixlOptions& options) {
  const auto parts = PluginParts::find(options.plugin);
  if (!parts.isOk()) return CommandEnd::notRead(parts.status());
  const auto wheels = fittingWheels(options.python);
  if (!wheels.isOk()) return CommandEnd::notRead(wheels.status());
  for (const NixlWheel& wheel : *wheels) {
    const PluginFolder folder(wheel.plugins);
    PEERLANE_RETURN_IF_ERROR(folder.place(*parts));
    fmt::print("{}: {} and {} that it needs placed in {}\n", wheel.name(), kPluginFile,
               counted(parts->libraries.size(), "library", "libraries"), folder.path());
  }
  warnOfOtherFolder();
  return Status::ok();
}

std::string removalText(const PluginFolder& folder, const PluginFolder::Removed& removed) {
  if (removed.files == 0 && folder.hasPlugin())
    return fmt::format("{} in {} was not placed by this command and stays", kPluginFile,
                       folder.path());
  if (removed.files == 0) return fmt::format("nothing was placed in {}", folder.path());
  return fmt::format("{} removed from {}{}", counted(removed.files, "file", "files"), folder.path(),
                     removed.folderStays ? "; its folder peerlane has other files and stays" : "");
}

CommandEnd uninstall(const NixlOptions& options) {
  const auto wheels = findNixlWheels(options.python);
  if (!wheels.isOk()) return CommandEnd::notRead(wheels.status());
  for (const NixlWheel& wheel : *wheels) {
    const PluginFolder folder(wheel.plugins);
    PEERLANE_ASSIGN(const auto removed, folder.remove());
    fmt::print("{}: {}\n", wheel.name(), removalText(folder, removed));
  }
  return Status::ok();
}

CommandEnd check(const NixlOptions& options) {
  const auto wheels = fittingWheels(options.python);
  if (!wheels.isOk()) return CommandEnd::notRead(wheels.status());
  warnOfOtherFolder();
  for (const NixlWheel& wheel : *wheels) {
    if (!PluginFolder(wheel.plugins).hasPlugin())
      return Status(Code::kUnavailable,
                    fmt::format("{} is not in {}; `peerlane nixl install --python {}` places it",
                                kPluginFile, wheel.plugins, wheel.python));
    PEERLANE_ASSIGN(const auto report, tryTransfer(wheel));
    TextTable table("ll");
    table.addRow({"  transfer", std::string(kTriedTransfer) + ": every byte verified"});
    table.addRow({"  back end", "PEERLANE " + report.version});
    table.addRow({"  route", report.route});
    fmt::print("{}\n{}", wheel.name(), table.toString());
  }
  return Status::ok();
}

CLI::App* addAction(CLI::App& command, const char* name, const char* purpose, int& exitCode,
                    const std::shared_ptr<NixlOptions>& options,
                    CommandEnd (*run)(const NixlOptions& options)) {
  CLI::App* action = command.add_subcommand(name, purpose);
  action->add_option("--python", options->python, "The Python whose NIXL it is")
      ->capture_default_str();
  action->callback([&exitCode, options, run] { exitCode = run(*options).report(); });
  return action;
}

}  // namespace

void addNixlCommand(CLI::App& app, int& exitCode) {
  CLI::App* command =
      app.add_subcommand("nixl", "Place Peerlane as the back end PEERLANE in the NIXL of a Python");
  // A required subcommand would hide which word was none.
  command->require_subcommand(0, 1);
  command->callback([command] {
    if (command->get_subcommands().empty()) throw CLI::RequiredError("install, uninstall or check");
  });
  auto options = std::make_shared<NixlOptions>();
  addAction(*command, "install",
            "Check that it fits, and place it with the libraries that it needs", exitCode, options,
            install)
      ->add_option("--plugin", options->plugin, "The plug-in, if not the one of this program");
  addAction(*command, "uninstall", "Remove what install placed", exitCode, options, uninstall);
  addAction(*command, "check", "Check that it fits, and transfer between two agents of that Python",
            exitCode, options, check);
}

}  // namespace peerlane
