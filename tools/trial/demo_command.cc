// SPDX-License-Identifier: Apache-2.0
#include "tools/trial/demo_command.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tools/memory/device_option.h"
#include "tools/report/failure_report.h"
#include "tools/report/text_table.h"
#include "tools/trial/trial.h"

namespace peerlane {
namespace {

constexpr uint64_t kKiB = 1 << 10;
constexpr uint64_t kMiB = 1 << 20;

struct DemoRow {
  std::string operation;
  std::function<Result<TrialOutcome>(Trial&)> run;
};

TrialShape whole(TrialMemory memory, uint64_t bytes) {
  return {.local = memory, .remote = memory, .blockBytes = bytes};
}

std::vector<DemoRow> demoRows() {
  using enum TrialMemory;
  const TrialShape scattered{.blockBytes = 512 * kKiB, .count = 128, .gapBytes = 64};
  return {
      {"put, shared memory", [](Trial& t) { return t.put(whole(kShared, 32 * kMiB), 7); }},
      {"get, shared memory", [](Trial& t) { return t.get(whole(kShared, 32 * kMiB), 7); }},
      {"put, private memory", [](Trial& t) { return t.put(whole(kPrivate, 32 * kMiB), 7); }},
      {"get, private memory", [](Trial& t) { return t.get(whole(kPrivate, 32 * kMiB), 7); }},
      {"send/recv", [](Trial& t) { return t.message(whole(kShared, 32 * kMiB), 7); }},
      {"put, 128 x 512 KiB scattered", [=](Trial& t) { return t.put(scattered, 3); }},
      {"put, 4 KiB", [](Trial& t) { return t.put(whole(kShared, 4 * kKiB), 201); }},
      {"put, 8 bytes", [](Trial& t) { return t.put(whole(kShared, 8), 201); }},
      {"send/recv, 8 bytes", [](Trial& t) { return t.message(whole(kShared, 8), 201); }},
      {"a file: this program", [](Trial& t) { return t.putFile("/proc/self/exe", kShared, 5); }},
  };
}

std::vector<DemoRow> gpuRows() {
  using enum TrialMemory;
  const auto big = [](TrialMemory memory, Engine engine = Engine::kAuto) {
    TrialShape shape = whole(memory, 256 * kMiB);
    shape.engine = engine;
    return shape;
  };
  const auto scattered = [](uint64_t blockBytes, uint64_t count) {
    return TrialShape{.local = kGpuShared,
                      .remote = kGpuShared,
                      .blockBytes = blockBytes,
                      .count = count,
                      .gapBytes = 64};
  };
  const TrialShape pages = scattered(512 * kKiB, 128);
  const TrialShape small = scattered(16 * kKiB, 4096);
  return {
      {"put", [=](Trial& t) { return t.put(big(kGpuShared), 5); }},
      {"get", [=](Trial& t) { return t.get(big(kGpuShared), 5); }},
      {"put, copy engine", [=](Trial& t) { return t.put(big(kGpuShared, Engine::kCe), 5); }},
      {"put, kernel", [=](Trial& t) { return t.put(big(kGpuShared, Engine::kSm), 5); }},
      {"send/recv", [=](Trial& t) { return t.message(big(kGpuShared), 5); }},
      {"send/recv, 8 bytes", [](Trial& t) { return t.message(whole(kGpuShared, 8), 201); }},
      {"put, cudaMalloc memory", [=](Trial& t) { return t.put(big(kGpuMalloc), 5); }},
      {"get, cudaMalloc memory", [=](Trial& t) { return t.get(big(kGpuMalloc), 5); }},
      {"put, 128 x 512 KiB scattered", [=](Trial& t) { return t.put(pages, 5); }},
      {"get, 128 x 512 KiB scattered", [=](Trial& t) { return t.get(pages, 5); }},
      {"put, 4096 x 16 KiB scattered", [=](Trial& t) { return t.put(small, 5); }},
      {"put, 4 KiB", [](Trial& t) { return t.put(whole(kGpuShared, 4 * kKiB), 201); }},
      {"put, 8 bytes", [](Trial& t) { return t.put(whole(kGpuShared, 8), 201); }},
      {"a file: this program", [](Trial& t) { return t.putFile("/proc/self/exe", kGpuShared, 5); }},
  };
}

std::vector<std::string> cellsOf(const std::string& operation, const std::string& link,
                                 const TrialOutcome& outcome) {
  const auto nanoseconds = static_cast<double>(outcome.p50.count());
  const double gbps = static_cast<double>(outcome.bytes) / nanoseconds;
  return {operation,
          link,
          outcome.engine,
          fmt::format("{}", outcome.bytes),
          gbps < 1 ? fmt::format("{:.2g}", gbps) : fmt::format("{:.2f}", gbps),
          fmt::format("{:.2f}", nanoseconds / 1000)};
}

// The trial that `choice` asks for. Where nobody insists on GPUs and they cannot be used, the
// choice becomes the host, and says why.
Result<std::unique_ptr<Trial>> startTrial(DeviceChoice& choice) {
  PEERLANE_ASSIGN(const Config config, Config::fromEnvironment());
  auto trial =
      Trial::create({.config = config, .device = choice.local, .secondDevice = choice.remote});
  if (!choice.isGpu()) return trial;
  Status failure = trial.status();
  if (trial.isOk() && !(*trial)->deviceRefusal().empty())
    failure = Status(Code::kNotSupported, "no link reaches memory of the other side's GPU: " +
                                              (*trial)->deviceRefusal());
  if (failure.isOk()) return trial;
  if (!choice.automatic) return failure;
  if (trial.isOk()) PEERLANE_RETURN_IF_ERROR((*trial)->end());
  choice = {.why = "auto: GPUs cannot be used: " + failureText(failure), .automatic = true};
  return Trial::create({.config = config});
}

struct DemoTotal {
  uint64_t bytes = 0;
  uint64_t transfers = 0;
  uint64_t wrong = 0;
};

Status runRows(Trial& trial, const std::vector<DemoRow>& rows, const std::string& link,
               TextTable& table, DemoTotal& total) {
  table.addRow({"operation", "link", "engine", "bytes", "GB/s", "p50 us"});
  for (const DemoRow& row : rows) {
    auto outcome = row.run(trial);
    if (!outcome.isOk()) return outcome.status().withContext(row.operation);
    total.bytes += outcome->bytes * outcome->transfers;
    total.transfers += outcome->transfers;
    total.wrong += outcome->wrong;
    table.addRow(cellsOf(row.operation, link, *outcome));
  }
  return Status::ok();
}

std::string headOf(const DeviceChoice& choice) {
  if (!choice.isGpu()) return fmt::format("two processes, memory of the host ({})\n", choice.why);
  return fmt::format("two processes, {} to {} ({})\n", choice.local.toString(),
                     choice.remote.toString(), choice.why);
}

CommandEnd runDemo(const std::string& device) {
  auto devices = readDevices(device);
  if (!devices.isOk()) return CommandEnd::notRead(devices.status());
  DeviceChoice choice = *std::move(devices);
  PEERLANE_ASSIGN(const auto trial, startTrial(choice));
  const Route route = trial->peer().route();
  TextTable table("lllrrr");
  DemoTotal total;
  PEERLANE_RETURN_IF_ERROR(runRows(*trial, choice.isGpu() ? gpuRows() : demoRows(),
                                   choice.isGpu() ? route.deviceLink : route.link, table, total));
  PEERLANE_RETURN_IF_ERROR(trial->end());
  fmt::print("{}{}verified {} bytes in {} transfers, {} wrong\n", headOf(choice), table.toString(),
             total.bytes, total.transfers, total.wrong);
  if (total.wrong == 0) return Status::ok();
  return Status(Code::kCorrupt,
                fmt::format("{} bytes did not arrive as they were sent", total.wrong));
}

}  // namespace

void addDemoCommand(CLI::App& app, int& exitCode) {
  CLI::App* command =
      app.add_subcommand("demo", "Move real data between two processes and verify every byte");
  auto device = std::make_shared<std::string>("auto");
  command->add_option("--device", *device, kDeviceOption)->capture_default_str();
  command->callback([&exitCode, device] { exitCode = runDemo(*device).report(); });
}

}  // namespace peerlane
