// SPDX-License-Identifier: Apache-2.0
//
// The command line `peerlane`: registers the commands and runs the one that was named. Exit codes:
// 0 done, 1 failed (one line on standard error says why), 2 not understood.
#include <signal.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "peerlane/core/version.h"
#include "tools/demo_command.h"
#include "tools/doctor_command.h"
#include "tools/explain_command.h"
#include "tools/failure_report.h"
#include "tools/recv_command.h"
#include "tools/send_command.h"
#include "tools/topo_command.h"
#include "tools/trial.h"
#ifdef PEERLANE_WITH_BENCH
#include "tools/bench_command.h"
#endif

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

int run(int count, char** arguments) {
  // A closed pipe or a file at its limit is an error value like others.
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);

  int exitCode = 0;
  CLI::App app("Direct memory transfer between processes and devices", "peerlane");
  app.set_version_flag("--version", PEERLANE_VERSION);
  app.require_subcommand(1);
  addDemoCommand(app, exitCode);
  addSendCommand(app, exitCode);
  addRecvCommand(app, exitCode);
#ifdef PEERLANE_WITH_BENCH
  addBenchCommand(app, exitCode);
#endif
  addTopoCommand(app, exitCode);
  addDoctorCommand(app, exitCode);
  addExplainCommand(app, exitCode);
  addTrialPartner(app, exitCode);
  try {
    app.parse(count, arguments);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help and --version
    std::fprintf(stderr, "peerlane: %s (peerlane --help lists what is accepted)\n", error.what());
    return kExitUsage;
  }
  return exitCode;
}

}  // namespace
}  // namespace peerlane

int main(int count, char** arguments) {
  return peerlane::run(count, arguments);
}
