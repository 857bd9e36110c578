// SPDX-License-Identifier: Apache-2.0
#include "tools/explain_command.h"

#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "tools/failure_report.h"
#include "tools/trial.h"

namespace peerlane {
namespace {

constexpr const char* kAvailable =
    "host:shared (memory of Context::allocate and other memory that peers can map), host:private "
    "(any other host memory)";

Result<TrialMemory> readMemory(const std::string& name) {
  if (name == "host:shared") return TrialMemory::kShared;
  if (name == "host:private") return TrialMemory::kPrivate;
  return Status(Code::kInvalidArgument,
                "no memory '" + name + "' on this machine; available: " + kAvailable);
}

Status explainTicket(const std::string& ticket) {
  PEERLANE_ASSIGN(const auto context, Context::create());
  PEERLANE_ASSIGN(const Peer peer, context->connect(ticket));
  fmt::print("to context {}{}\n{}", peer.contextId(),
             peer.processId() != 0 ? fmt::format(" (process {})", peer.processId()) : "",
             peer.route().toString());
  return Status::ok();
}

Status explainPairs(const std::vector<std::pair<TrialMemory, TrialMemory>>& pairs) {
  PEERLANE_ASSIGN(Config config, Config::fromEnvironment());
  PEERLANE_ASSIGN(const auto trial, Trial::create({.config = std::move(config)}));
  fmt::print("from process {} to process {} on this host\n{}", ::getpid(),
             trial->peer().processId(), trial->peer().route().toString());
  for (const auto& [local, remote] : pairs) {
    const auto engine = trial->engineFor(local, remote);
    fmt::print(
        "host:{} -> host:{}: {}\n", trialMemoryName(local), trialMemoryName(remote),
        engine.isOk() ? "engine " + *engine : "not possible: " + failureText(engine.status()));
  }
  return trial->end();
}

Status runExplain(const std::vector<std::string>& places) {
  using enum TrialMemory;
  if (places.empty())
    return explainPairs(
        {{kShared, kShared}, {kShared, kPrivate}, {kPrivate, kShared}, {kPrivate, kPrivate}});
  if (places.size() == 1) return explainTicket(places[0]);
  PEERLANE_ASSIGN(const TrialMemory local, readMemory(places[0]));
  PEERLANE_ASSIGN(const TrialMemory remote, readMemory(places[1]));
  return explainPairs({{local, remote}});
}

}  // namespace

void addExplainCommand(CLI::App& app, int& exitCode) {
  CLI::App* command = app.add_subcommand(
      "explain", "Show the route that would be taken, and why the others would not");
  auto places = std::make_shared<std::vector<std::string>>();
  command
      ->add_option("PLACE", *places,
                   "Nothing: all kinds of memory of two processes here. One ticket (also @file, "
                   "env:NAME, -): the route to that context. Two of host:shared, host:private: "
                   "from one to the other")
      ->expected(0, 2);
  command->callback([&exitCode, places] {
    if (const Status status = runExplain(*places); !status.isOk()) exitCode = reportFailure(status);
  });
}

}  // namespace peerlane
