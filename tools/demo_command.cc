// SPDX-License-Identifier: Apache-2.0
#include "tools/demo_command.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "tools/failure_report.h"
#include "tools/text_table.h"
#include "tools/trial.h"

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

Status runDemo() {
  PEERLANE_ASSIGN(Config config, Config::fromEnvironment());
  PEERLANE_ASSIGN(const auto trial, Trial::create({.config = std::move(config)}));
  const std::string link = trial->peer().route().link;
  TextTable table("lllrrr");
  table.addRow({"operation", "link", "engine", "bytes", "GB/s", "p50 us"});
  uint64_t bytes = 0;
  uint64_t transfers = 0;
  uint64_t wrong = 0;
  for (const DemoRow& row : demoRows()) {
    auto outcome = row.run(*trial);
    if (!outcome.isOk()) return outcome.status().withContext(row.operation);
    bytes += outcome->bytes * outcome->transfers;
    transfers += outcome->transfers;
    wrong += outcome->wrong;
    table.addRow(cellsOf(row.operation, link, *outcome));
  }
  PEERLANE_RETURN_IF_ERROR(trial->end());
  fmt::print("{}verified {} bytes in {} transfers, {} wrong\n", table.toString(), bytes, transfers,
             wrong);
  if (wrong == 0) return Status::ok();
  return Status(Code::kCorrupt, fmt::format("{} bytes did not arrive as they were sent", wrong));
}

}  // namespace

void addDemoCommand(CLI::App& app, int& exitCode) {
  CLI::App* command =
      app.add_subcommand("demo", "Move real data between two processes and verify every byte");
  command->callback([&exitCode] {
    if (const Status status = runDemo(); !status.isOk()) exitCode = reportFailure(status);
  });
}

}  // namespace peerlane
