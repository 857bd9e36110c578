// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/explain_command.h"

#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "peerlane/core/text.h"
#include "tools/doctor/explain_program.h"
#include "tools/memory/device_option.h"
#include "tools/report/failure_report.h"
#include "tools/trial/trial.h"

namespace peerlane {
namespace {

constexpr const char* kAvailable =
    "host:shared (memory of Context::allocate and other memory that peers can map), host:private "
    "(any other host memory), cuda:I:shared (Context::allocate on that GPU), cuda:I:malloc (memory "
    "of cudaMalloc)";

// A kind of memory, and the GPU it lies on.
struct Place {
  TrialMemory memory = TrialMemory::kShared;
  Device gpu{};

  std::string name() const { return trialMemoryName(memory, gpu); }
};
using PlacePairs = std::vector<std::pair<Place, Place>>;

struct ExplainOptions {
  std::vector<std::string> places;
  std::string device = "auto";
  bool programs = false;
  bool oneProcess = false;
};

Result<Place> readPlace(const std::string& name) {
  if (name == "host:shared") return Place{TrialMemory::kShared, {}};
  if (name == "host:private") return Place{TrialMemory::kPrivate, {}};
  const size_t colon = name.rfind(':');
  const std::string kind = colon == std::string::npos ? "" : name.substr(colon + 1);
  const bool isNamed = kind == "shared" || kind == "malloc";
  if (name.starts_with("cuda")) {
    const auto gpu = readGpu(isNamed ? name.substr(0, colon) : name);
    if (gpu.isOk())
      return Place{kind == "malloc" ? TrialMemory::kGpuMalloc : TrialMemory::kGpuShared, *gpu};
    return Status(gpu.status().code(), "no memory '" + name + "' on this machine: " +
                                           std::string(gpu.status().message()) +
                                           "; available: " + kAvailable);
  }
  return Status(Code::kInvalidArgument,
                "no memory '" + name + "' on this machine; available: " + kAvailable);
}

// Said before "not a ticket" could be.
Status checkIsNoPlace(const std::string& word) {
  if (!word.starts_with("host:") && !word.starts_with("cuda:") && word != "host" && word != "cuda")
    return Status::ok();
  return Status(Code::kInvalidArgument,
                "one place, " + peerlane::quoted(word) +
                    "; places come in twos, from and to, as in: peerlane explain host:private "
                    "host:shared");
}

CommandEnd explainTicket(const ExplainOptions& options) {
  if (const Status place = checkIsNoPlace(options.places[0]); !place.isOk())
    return CommandEnd::notRead(place);
  if (options.programs || options.oneProcess)
    return CommandEnd::notRead(
        Status(Code::kInvalidArgument,
               "--program and --one-process beside a ticket; they are for two places of this host, "
               "or none"));
  const auto choice = readOneDevice(options.device);
  if (!choice.isOk()) return CommandEnd::notRead(choice.status());
  PEERLANE_ASSIGN(const auto context, Context::create({.devices = gpusOf(choice->local)}));
  const auto connected = context->connect(options.places[0]);
  if (!connected.isOk()) return CommandEnd::noTicket(connected.status());
  const Peer& peer = *connected;
  fmt::print("to context {}{}\n{}", peer.contextId(),
             peer.processId() != 0 ? fmt::format(" (process {})", peer.processId()) : "",
             peer.route().toString());
  return Status::ok();
}

Status explainPairs(const ExplainOptions& options, const DeviceChoice& choice,
                    const PlacePairs& pairs) {
  PEERLANE_ASSIGN(Config config, Config::fromEnvironment());
  PEERLANE_ASSIGN(const auto trial, Trial::create({.config = std::move(config),
                                                   .oneProcess = options.oneProcess,
                                                   .device = choice.local,
                                                   .secondDevice = choice.remote}));
  fmt::print("from process {} to process {} on this host; {}\n{}", ::getpid(),
             trial->peer().processId(), choice.why, trial->peer().route().toString());
  for (const auto& [local, remote] : pairs) {
    const auto engine = trial->engineFor(local.memory, remote.memory);
    fmt::print(
        "{} -> {}: {}\n", local.name(), remote.name(),
        engine.isOk() ? "engine " + *engine : "not possible: " + failureText(engine.status()));
    if (!options.programs || !engine.isOk()) continue;
    PEERLANE_ASSIGN(const std::string queues, explainQueues(*trial, local.memory, remote.memory));
    fmt::print("{}", queues);
  }
  return trial->end();
}

// Every kind of memory of this side with every one of the other.
CommandEnd explainAll(const ExplainOptions& options) {
  using enum TrialMemory;
  const auto devices = readDevices(options.device);
  if (!devices.isOk()) return CommandEnd::notRead(devices.status());
  const DeviceChoice& choice = *devices;
  std::vector<TrialMemory> kinds{kShared, kPrivate};
  if (choice.isGpu()) kinds = {kGpuShared, kGpuMalloc, kShared, kPrivate};
  PlacePairs pairs;
  for (const TrialMemory local : kinds)
    for (const TrialMemory remote : kinds)
      pairs.push_back({{local, choice.local}, {remote, choice.remote}});
  return explainPairs(options, choice, pairs);
}

Result<std::pair<Place, Place>> readTwo(const ExplainOptions& options) {
  PEERLANE_ASSIGN(Place local, readPlace(options.places[0]));
  PEERLANE_ASSIGN(Place remote, readPlace(options.places[1]));
  if (options.device != "auto")
    return Status(Code::kInvalidArgument, "--device beside two places, which name their own");
  return std::pair(std::move(local), std::move(remote));
}

CommandEnd explainTwo(const ExplainOptions& options) {
  const auto places = readTwo(options);
  if (!places.isOk()) return CommandEnd::notRead(places.status());
  const auto& [local, remote] = *places;
  // A side that is asked for memory of the host may use the other one's GPU: the pair of memories
  // is to be explained.
  const bool localHost = local.gpu.kind == DeviceKind::kHost;
  const bool remoteHost = remote.gpu.kind == DeviceKind::kHost;
  return explainPairs(options,
                      {.local = localHost ? remote.gpu : local.gpu,
                       .remote = remoteHost ? local.gpu : remote.gpu,
                       .why = "places as asked for"},
                      {{local, remote}});
}

CommandEnd runExplain(const ExplainOptions& options) {
  if (options.places.empty()) return explainAll(options);
  return options.places.size() == 1 ? explainTicket(options) : explainTwo(options);
}

}  // namespace

void addExplainCommand(CLI::App& app, int& exitCode) {
  CLI::App* command = app.add_subcommand(
      "explain", "Show the route that would be taken, and why the others would not");
  auto options = std::make_shared<ExplainOptions>();
  command
      ->add_option("PLACE", options->places,
                   "Nothing: all kinds of memory of two processes here. One ticket (also @file, "
                   "env:NAME, -): the route to that context. Two of host:shared, host:private, "
                   "cuda:I:shared, cuda:I:malloc: from one to the other")
      ->expected(0, 2);
  command->add_option("--device", options->device, kDeviceOption)->capture_default_str();
  command->add_flag("--program", options->programs,
                    "Also the programs that a triggered queue makes there, for each emitter");
  command->add_flag("--one-process", options->oneProcess,
                    "Two contexts of this process, instead of two processes");
  command->callback([&exitCode, options] { exitCode = runExplain(*options).report(); });
}

}  // namespace peerlane
