// SPDX-License-Identifier: Apache-2.0
//
// The command line `peerlane`: its commands.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "tools/command_line.h"
#include "tools/doctor/doctor_command.h"
#include "tools/doctor/explain_command.h"
#include "tools/doctor/topo_command.h"
#include "tools/file/recv_command.h"
#include "tools/file/send_command.h"
#include "tools/rare_command.h"
#include "tools/trial/demo_command.h"
#include "tools/trial/trial.h"

namespace peerlane {
namespace {

// demo, doctor and explain start this program again with this command.
void addTrialPartner(CLI::App& app, int& exitCode) {
  CLI::App* command = app.add_subcommand("trial-partner");
  command->group("");  // not for people: absent from the help
  auto device = std::make_shared<std::string>("host");
  command->add_option("--device", *device);
  command->callback([&exitCode, device] { exitCode = runTrialPartner(*device); });
}

}  // namespace
}  // namespace peerlane

int main(int count, char** arguments) {
  using namespace peerlane;
  return runCommandLine(count, arguments, [arguments](CLI::App& app, int& exitCode) {
    addDemoCommand(app, exitCode);
    addSendCommand(app, exitCode);
    addRecvCommand(app, exitCode);
    addRareCommand(app, "bench",
                   "Measure transfers between two processes, and the raw limit of this machine",
                   arguments, exitCode);
    addTopoCommand(app, exitCode);
    addDoctorCommand(app, exitCode);
    addExplainCommand(app, exitCode);
    addRareCommand(app, "nixl", "Place Peerlane in the NIXL of a Python, try it, take it out again",
                   arguments, exitCode);
    addTrialPartner(app, exitCode);
  });
}
