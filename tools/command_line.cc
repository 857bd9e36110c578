// SPDX-License-Identifier: Apache-2.0
#include "tools/command_line.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <iostream>
#include <span>
#include <string>
#include <system_error>

#include "peerlane/core/version.h"
#include "tools/report/ending_signals.h"
#include "tools/report/failure_report.h"

namespace peerlane {
namespace {

// Of those for people.
std::string commandNames(const CLI::App& app) {
  std::string names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    if (!command->get_group().empty()) names += (names.empty() ? "" : ", ") + command->get_name();
  return names;
}

// CLI11 would only say that a command is missing.
std::string whyUnderstoodNothing(const CLI::App& app, std::span<char* const> arguments) {
  if (arguments.empty()) return "no command; accepted are " + commandNames(app);
  const std::string first = arguments.front();
  if (first.starts_with("-"))
    return "\"" + first + "\" is no option here; accepted are --help, --version, and commands: " +
           commandNames(app);
  return "\"" + first + "\" is no command; accepted are " + commandNames(app);
}

// Says what was wrong, and which help lists the right arguments.
int refuse(const CLI::App& app, const CLI::ParseError& error, std::span<char* const> arguments) {
  const auto named = app.get_subcommands();
  const std::string help = "peerlane " + (named.empty() ? "" : named.front()->get_name() + " ");
  const std::string why = named.empty() ? whyUnderstoodNothing(app, arguments) : error.what();
  std::fprintf(stderr, "peerlane: %s (%s--help lists what is accepted)\n", why.c_str(),
               help.c_str());
  return kExitUsage;
}

// The first files that a program opens would take the numbers of streams that it was started
// without, and printed text would go into them. This fills each with a descriptor that fails at
// every use.
void fillClosedStreams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(stream, F_GETFD) < 0)
      (void)::open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

// Whether all that was printed has left this process.
Status flushOutput() {
  std::cout.flush();
  errno = 0;
  const bool flushed = std::fflush(stdout) == 0;
  if (flushed && std::ferror(stdout) == 0 && std::cout.good()) return Status::ok();
  // An earlier write failed, and its reason is gone: one more fails for the same.
  if (errno == 0 && ::write(STDOUT_FILENO, "\n", 1) == 1) errno = EIO;
  return Status::system(errno, "standard output could not be written");
}

int parseAndRun(CLI::App& app, int count, char** arguments, const int& exitCode) {
  try {
    app.parse(count, arguments);
    return exitCode;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help and --version
    return refuse(app, error,
                  std::span<char* const>(arguments, static_cast<size_t>(count)).subspan(1));
  } catch (const std::system_error& error) {  // fmt::print throws it
    return reportFailure(
        Status::system(error.code().value(), "standard output could not be written"));
  }
}

}  // namespace

int runCommandLine(int count, char** arguments,
                   const std::function<void(CLI::App& app, int& exitCode)>& addCommands) {
  fillClosedStreams();
  // A closed pipe or a file at its limit is an error value like others.
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);
  takeFilesAwayAtSignals();

  int exitCode = 0;
  CLI::App app("Direct memory transfer between processes and devices", "peerlane");
  app.set_version_flag("--version", PEERLANE_VERSION);
  app.require_subcommand(1);
  addCommands(app, exitCode);
  const int code = parseAndRun(app, count, arguments, exitCode);
  if (code != 0) return code;
  const Status flushed = flushOutput();
  return flushed.isOk() ? 0 : reportFailure(flushed);
}

}  // namespace peerlane
