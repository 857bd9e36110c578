// SPDX-License-Identifier: Apache-2.0
#include "tools/bench_command.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "peerlane/core/text.h"
#include "tools/bench_child.h"
#include "tools/bench_connect.h"
#include "tools/bench_copy.h"
#include "tools/bench_pair.h"
#include "tools/bench_pingpong.h"
#include "tools/bench_post.h"
#include "tools/bench_report.h"
#include "tools/failure_report.h"

namespace peerlane {
namespace bench {
namespace {

uint64_t regionBytesFor(const BenchOptions& options) {
  constexpr uint64_t kLeast = 4096;
  if (options.operation == "put" || options.operation == "get")
    return std::max(kLeast, copyRegionBytes(options));
  return std::max(kLeast, options.endBytes);
}

bool isLatency(const std::string& operation) {
  return operation == "pingpong" || operation == "connect";
}

std::string titleOf(const BenchOptions& options, BenchPair& pair) {
  std::string title = "# peerlane bench " + options.operation + ": " + options.memory +
                      " memory, link " + pair.link() + ", engine " + pair.engine();
  if (options.isScattered())
    title += ", " + std::to_string(options.blocks) + " blocks of " +
             formatByteSize(options.blockBytes) + " per call, places new every time" +
             (options.indexed ? ", by block number" : "");
  if (options.operation == "pingpong") title += ", half round trips, both sides spin";
  if (options.operation == "post")
    title += ", one plan, same buffers, one flush per 64 posts (as ucp_put_bw, window 64)";
  return title;
}

Status dispatch(BenchPair& pair, const BenchOptions& options, BenchReport& report) {
  if (options.operation == "put" || options.operation == "get")
    return benchCopy(pair, options, report);
  if (options.operation == "pingpong") return benchPingpong(pair, options, report);
  if (options.operation == "post") return benchPost(pair, options, report);
  return benchConnect(pair, options, report);
}

}  // namespace

Status runBench(BenchOptions options, std::ostream& out) {
  PEERLANE_RETURN_IF_ERROR(complete(options));
  BenchReport report(out);
  {
    PEERLANE_ASSIGN(auto pair, BenchPair::create(options, regionBytesFor(options)));
    report.printHeader(titleOf(options, *pair), isLatency(options.operation));
    PEERLANE_RETURN_IF_ERROR(dispatch(*pair, options, report));
  }
  if (!options.jsonFile.empty())
    PEERLANE_RETURN_IF_ERROR(report.writeJson(options.jsonFile, options.appendJson));
  return report.verdict();
}

}  // namespace bench

namespace {

// "-b" and the like: sizes as in the rest of the command line.
CLI::Option* addSize(CLI::App* command, const std::string& name, uint64_t& to,
                     const std::string& text) {
  return command->add_option_function<std::string>(
      name,
      [name, &to](const std::string& value) {
        const auto bytes = parseByteSize(value);
        if (!bytes) throw CLI::ValidationError(name, std::string(bytes.status().message()));
        to = *bytes;
      },
      text);
}

void describe(CLI::App* command, bench::BenchOptions& options) {
  command
      ->add_option("operation", options.operation,
                   "put, get: one-sided; pingpong: put + signal, half round trip; post: one plan "
                   "again and again, one flush per 64; connect: a new peer to its first byte")
      ->required()
      ->check(CLI::IsMember(bench::operations()));
  addSize(command, "-b,--begin", options.beginBytes, "Smallest size, such as 8 or 4K");
  addSize(command, "-e,--end", options.endBytes, "Largest size, such as 64M");
  command->add_option("-f,--factor", options.factor, "From one size to the next");
  command->add_option("-n,--iters", options.samples,
                      "Timed samples per size; as many as fit in a few seconds if not given");
  command->add_option("-w,--warmup", options.warmup, "Untimed samples before them")
      ->capture_default_str();
  command->add_option("--blocks", options.blocks, "A scattered list of this many blocks per call");
  addSize(command, "--block", options.blockBytes, "Bytes of each block of the list");
  command->add_flag("--indexed", options.indexed,
                    "The list as fresh block numbers for a prepared plan");
  command->add_option("--memory", options.memory, "mapped (made by the library) or private")
      ->capture_default_str();
  command->add_option("--link", options.link, "auto, shm or tcp")->capture_default_str();
  command->add_option("--engine", options.engine, "auto, mapped, cma or ring")
      ->capture_default_str();
  command->add_option("--cpus", options.cpus, "The cores of the two processes, such as 0,1")
      ->delimiter(',')
      ->expected(2);
  command->add_flag("--ceiling", options.ceiling,
                    "Measure the machine's raw limit in turns with the library");
  command->add_flag("--check", options.check, "Verify every sample, not eight per size");
  command->add_option("--json", options.jsonFile, "Write the report to this file");
  command->add_flag("--append", options.appendJson, "Keep the rows that the --json file has");
}

}  // namespace

void addBenchCommand(CLI::App& app, int& exitCode) {
  auto options = std::make_shared<bench::BenchOptions>();
  CLI::App* command = app.add_subcommand(
      "bench", "Measure transfers between two processes, and the raw limit of this machine");
  describe(command, *options);
  command->callback([options, &exitCode] {
    const Status done = bench::runBench(*options, std::cout);
    if (done.isOk()) return;
    exitCode = reportFailure(done);
    if (done.code() == Code::kInvalidArgument) exitCode = kExitUsage;
  });
  CLI::App* child = app.add_subcommand(bench::BenchPair::kChildCommand);
  child->group("");  // not for people: absent from the help
  child->callback([&exitCode] { exitCode = bench::runBenchChild(bench::BenchPair::kChildPipe); });
}

}  // namespace peerlane
