// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/doctor_command.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "peerlane/core/config.h"
#include "peerlane/session/context/inspect_process.h"
#include "tools/doctor/doctor_checks.h"
#include "tools/doctor/rdma_checks.h"
#include "tools/doctor/verify_rdma.h"
#include "tools/memory/device_option.h"
#include "tools/report/failure_report.h"
#include "tools/report/text_table.h"
#include "tools/report/warning_lines.h"
#include "tools/trial/trial.h"

namespace peerlane {
namespace {

using State = Finding::State;

constexpr uint64_t kTrialBytes = 1 << 20;

// One way to move bytes, tried for real.
struct SelfTest {
  std::string name;
  bool oneProcess;
  const char* links;
  const char* shmEngine;
  TrialMemory memory;
  const char* engine;  // that must have copied; null: any
  State ifNot;         // how bad it is when it does not work
  Device device{};
  Device secondDevice{};
};

const SelfTest kSelfTests[] = {
    {"one process", true, "self,shm", "auto", TrialMemory::kPrivate, nullptr, State::kBroken},
    {"two processes, mapped", false, "shm", "mapped", TrialMemory::kShared, "mapped",
     State::kBroken},
    {"two processes, cma", false, "shm", "cma", TrialMemory::kPrivate, "cma", State::kLimited},
    {"two processes, ring", false, "shm", "ring", TrialMemory::kPrivate, "ring", State::kBroken},
    {"two processes, tcp", false, "tcp", "auto", TrialMemory::kPrivate, nullptr, State::kBroken},
};

// Where there is a device for it.
const SelfTest kRdmaTest{"two processes, verbs", false,   "verbs",        "auto",
                         TrialMemory::kPrivate,  nullptr, State::kLimited};

// The same between GPUs, for both ways in which their memory comes about.
std::vector<SelfTest> gpuTests(const DeviceChoice& choice) {
  if (!choice.isGpu()) return {};
  SelfTest test{.name = choice.local.toString() + " to " + choice.remote.toString(),
                .oneProcess = false,
                .links = "shm,cuda_ipc",
                .shmEngine = "auto",
                .memory = TrialMemory::kGpuShared,
                .engine = "cuda",
                .ifNot = State::kBroken,
                .device = choice.local,
                .secondDevice = choice.remote};
  SelfTest heap = test;
  heap.name += ", cudaMalloc";
  heap.memory = TrialMemory::kGpuMalloc;
  heap.ifNot = State::kLimited;
  return {std::move(test), std::move(heap)};
}

// Whoever asks for the log gets all of it, in its order and from both processes.
bool isLogAskedFor() {
  const char* const level = std::getenv("PEERLANE_LOG");
  return level != nullptr && *level != '\0';
}

Result<TrialOutcome> tryOut(const SelfTest& test) {
  // The second process reads its environment; this one gets the same by value.
  PEERLANE_ASSIGN(Config config, Config::fromEnvironment());
  PEERLANE_ASSIGN(const Config changes,
                  Config::fromVariables(
                      {{"PEERLANE_LINKS", test.links}, {"PEERLANE_SHM_ENGINE", test.shmEngine}}));
  config.links = changes.links;
  config.shmEngine = changes.shmEngine;
  std::vector<std::string> environment{std::string("PEERLANE_LINKS=") + test.links,
                                       std::string("PEERLANE_SHM_ENGINE=") + test.shmEngine};
  // It would warn of the same as this one.
  if (!isLogAskedFor()) environment.emplace_back("PEERLANE_LOG=error");
  PEERLANE_ASSIGN(const auto trial, Trial::create({.config = std::move(config),
                                                   .environment = std::move(environment),
                                                   .oneProcess = test.oneProcess,
                                                   .device = test.device,
                                                   .secondDevice = test.secondDevice}));
  const TrialShape shape{.local = test.memory, .remote = test.memory, .blockBytes = kTrialBytes};
  PEERLANE_ASSIGN(TrialOutcome outcome, trial->put(shape, 3));
  PEERLANE_ASSIGN(const TrialOutcome back, trial->get(shape, 3));
  outcome.wrong += back.wrong;
  PEERLANE_RETURN_IF_ERROR(trial->end());
  if (test.engine != nullptr && outcome.engine != test.engine)
    return Status(Code::kUnavailable,
                  fmt::format("engine {} copied instead of {}", outcome.engine, test.engine));
  return outcome;
}

Finding selfTest(const SelfTest& test) {
  const auto outcome = tryOut(test);
  if (!outcome.isOk()) {
    const std::string hindrance = test.engine != nullptr && std::string(test.engine) == "cma"
                                      ? cmaHindrance()
                                      : std::string();
    return {test.name, test.ifNot, failureText(outcome.status()),
            hindrance.empty() ? "PEERLANE_LOG=debug peerlane doctor shows more" : hindrance};
  }
  if (outcome->wrong != 0)
    return {test.name, State::kBroken, fmt::format("{} wrong bytes", outcome->wrong),
            "do not use this machine for anything; report this"};
  const double gbps =
      static_cast<double>(outcome->bytes) / static_cast<double>(outcome->p50.count());
  return {test.name, State::kWorks,
          fmt::format("engine {}, put and get of 1 MiB verified (once, with cold memory, at {:.2f} "
                      "GB/s; peerlane bench measures)",
                      outcome->engine, gbps),
          ""};
}

// Prints a section; returns whether something in it is broken.
bool print(const char* title, const std::vector<Finding>& findings) {
  TextTable table("llll");
  bool broken = false;
  for (const Finding& finding : findings) {
    table.addRow({"", finding.subject, findingStateName(finding.state), finding.text});
    if (!finding.advice.empty()) table.addRow({"", "", "", "-> " + finding.advice});
    broken |= finding.state == State::kBroken;
  }
  fmt::print("{}\n{}\n", title, table.toString());
  std::fflush(stdout);
  return broken;
}

CommandEnd examine(const std::string& device) {
  const auto devices = readDevices(device);
  if (!devices.isOk()) return CommandEnd::notRead(devices.status());
  const DeviceChoice& choice = *devices;
  std::optional<WarningLines> warnings;
  if (!isLogAskedFor()) warnings.emplace();
  bool broken = print("Machine", checkMachine());
  broken |= print("Devices", checkDevices());
  bool hasRdma = false;
  if (const auto config = Config::fromEnvironment(); config.isOk()) {
    const RdmaReport report = inspectRdma(*config, RdmaProbe::kTry);
    broken |= print("RDMA", rdmaFindings(report));
    for (const RdmaDevice& one : report.devices) hasRdma |= one.refused.empty();
  }
  const bool badEnvironment = print("Environment", checkEnvironment());
  if (badEnvironment)
    return Status(Code::kInvalidArgument, "the environment is wrong: see above; nothing was tried");
  std::vector<Finding> tried;
  for (const SelfTest& test : kSelfTests) tried.push_back(selfTest(test));
  if (hasRdma) tried.push_back(selfTest(kRdmaTest));
  for (const SelfTest& test : gpuTests(choice)) tried.push_back(selfTest(test));
  if (!choice.isGpu())
    tried.push_back({"two processes, GPUs", State::kAbsent, "not tried (" + choice.why + ")", ""});
  broken |= print("Tried out", tried);
  if (!broken) return Status::ok();
  return Status(Code::kUnavailable, "something that Peerlane needs is broken here: see above");
}

CommandEnd verify(const std::vector<std::string>& what) {
  PEERLANE_ASSIGN(const Config config, Config::fromEnvironment());
  const auto verdict = verifyRdma(config, what[0], what[1]);
  if (!verdict.isOk()) return CommandEnd::notRead(verdict.status());
  const std::string title = "RDMA between " + what[0] + " and " + what[1];
  (void)print(title.c_str(), verdict->findings);
  return verdict->best;
}

Status inspect(int pid) {
  PEERLANE_ASSIGN(const Config config, Config::fromEnvironment());
  PEERLANE_ASSIGN(const auto texts, inspectProcess(pid, config.socketDirectory));
  for (const std::string& text : texts) fmt::print("{}\n", text);
  return Status::ok();
}

}  // namespace

void addDoctorCommand(CLI::App& app, int& exitCode) {
  CLI::App* command = app.add_subcommand(
      "doctor", "Show what works here, what does not, why, and what to do about it");
  auto pid = std::make_shared<int>(0);
  command->add_option("--pid", *pid, "Show instead what the contexts of this process are doing")
      ->check(CLI::Validator(
          [](const std::string& text) {
            const bool isNumber = !text.empty() && text.size() <= 9 &&
                                  text.find_first_not_of("0123456789") == std::string::npos;
            return isNumber && std::stoi(text) > 0 ? std::string()
                                                   : "\"" + text + "\" is not a process number";
          },
          "PID"));
  auto rdma = std::make_shared<std::vector<std::string>>();
  command
      ->add_option("--verify-rdma", *rdma,
                   "Show instead whether this NIC moves the bytes of this memory, by each way of "
                   "registering it: host or cuda:I, and mlx5_0, say. Status 0: the best way works")
      ->expected(2)
      ->type_name("MEMORY DEVICE");
  auto device = std::make_shared<std::string>("auto");
  command->add_option("--device", *device, std::string("What is tried out: ") + kDeviceOption)
      ->capture_default_str();
  command->callback([&exitCode, pid, device, rdma] {
    exitCode = (*pid != 0        ? CommandEnd(inspect(*pid))
                : !rdma->empty() ? verify(*rdma)
                                 : examine(*device))
                   .report();
  });
}

}  // namespace peerlane
