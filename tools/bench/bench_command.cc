// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/bench_command.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "peerlane/core/config.h"
#include "peerlane/core/text.h"
#include "tools/bench/bench_child.h"
#include "tools/bench/bench_run.h"
#include "tools/bench/gpu/bench_gpu.h"
#include "tools/bench/gpu/bench_gpu_child.h"
#include "tools/bench/p2p/bench_p2p.h"
#include "tools/bench/port/bench_port.h"
#include "tools/bench/sides/bench_pair.h"
#include "tools/bench/sides/bench_report.h"
#include "tools/report/failure_report.h"

namespace peerlane {
namespace {

// "-b" and the like: sizes as in the rest of the command line.
CLI::Option* addSize(CLI::App* command, const std::string& name, uint64_t& to,
                     const std::string& text) {
  return command->add_option_function<std::string>(
      name,
      [name, &to](const std::string& value) {
        const auto bytes = parseByteSize(value);
        if (!bytes) throw CLI::ValidationError(name, std::string(bytes.status().message()));
        if (*bytes == 0) throw CLI::ValidationError(name, "0 bytes; accepted are sizes from 1");
        to = *bytes;
      },
      text);
}

// CLI11 takes "-3" for a very large unsigned number.
CLI::Validator wholeNumber(uint64_t least) {
  return CLI::Validator(
      [least](const std::string& text) {
        const bool digits = !text.empty() && text.size() <= 12 &&
                            text.find_first_not_of("0123456789") == std::string::npos;
        return digits && std::stoull(text) >= least
                   ? std::string()
                   : "\"" + text + "\" is not a whole number from " + std::to_string(least) +
                         " to 999999999999";
      },
      "COUNT");
}

std::vector<std::string> operationNames() {
  std::vector<std::string> names = bench::operations();
  names.emplace_back("port");  // a table of its own
  return names;
}

void describe(CLI::App* command, bench::BenchOptions& options) {
  command
      ->add_option(
          "operation", options.operation,
          "put, get: one-sided; sendrecv: a message and its answer; batch: many messages in one "
          "call; pingpong: put + signal, half round trip; post: one plan "
          "again and again, one flush per 64; connect: a new peer to its first byte; "
          "cancel: from cancel() to the end (tcp, ring); setup: what 1 to 16000 regions cost; "
          "trigger: a put by a triggered queue, by a plan and raw, and its server; "
          "port: port "
          "channels between GPUs, the whole table")
      ->check(CLI::IsMember(operationNames()));
  addSize(command, "-b,--begin", options.beginBytes, "Smallest size, such as 8 or 4K");
  addSize(command, "-e,--end", options.endBytes, "Largest size, such as 64M");
  command->add_option("-f,--factor", options.factor, "From one size to the next")
      ->check(wholeNumber(2));
  command
      ->add_option("-n,--iters", options.samples,
                   "Timed samples per size; as many as fit in a few seconds if not given")
      ->check(wholeNumber(1));
  command->add_option("-w,--warmup", options.warmup, "Untimed samples before them")
      ->capture_default_str()
      ->check(wholeNumber(0));
  command
      ->add_option("--blocks", options.blocks,
                   "A scattered list of this many blocks per call; setup: regions")
      ->check(wholeNumber(1));
  addSize(command, "--block", options.blockBytes, "Bytes of each block of the list");
  command->add_flag("--indexed", options.indexed,
                    "The list as fresh block numbers for a prepared plan");
  command
      ->add_option("--memory", options.memory,
                   "mapped (made by the library) or private; GPUs: vmm (the same) or cudamalloc")
      ->capture_default_str();
  command->add_option("--link", options.link, "auto, shm, tcp or verbs")->capture_default_str();
  command
      ->add_option("--engine", options.engine,
                   "auto, mapped, cma or ring; GPUs: auto, ce, sm or inline")
      ->capture_default_str();
  command->add_option("--cpus", options.cpus, "The cores of the two processes, such as 0,1")
      ->delimiter(',')
      ->expected(2);
  command
      ->add_option("--protocol", options.protocol,
                   "sendrecv, batch: auto, eager, get, put or ring; between GPUs auto, get or put")
      ->capture_default_str();
  command->add_flag("--poll", options.pollSignals,
                    "pingpong: look at Signal::value() in a loop instead of Signal::wait()");
  command
      ->add_option("--api", options.api,
                   "connect: peerlane, or p2p for communicators of the C API (p2p.h)")
      ->capture_default_str()
      ->check(CLI::IsMember({"peerlane", "p2p"}));
}

void describeReport(CLI::App* command, bench::BenchOptions& options) {
  command->add_flag("--ceiling", options.ceiling,
                    "Measure the machine's raw limit in turns with the library; without an "
                    "operation, on GPUs: the raw limits alone");
  command
      ->add_option("--copy-threads", options.copyThreads,
                   "put, get: threads that help to copy (ContextOptions::copyThreads); the raw "
                   "limit has as many")
      ->check(wholeNumber(0));
  command->add_option("--tune", options.tuneFile,
                      "Measure from which size on which instruction of the processor is the "
                      "fastest, with --device cuda also which engine, into this file for "
                      "PEERLANE_TUNE");
  command->add_flag("--check", options.check, "Verify every sample, not eight per size");
  command->add_option("--json", options.jsonFile, "Write the report to this file");
  command->add_flag("--append", options.appendJson, "Keep the rows that the --json file has");
}

void describeGpus(CLI::App* command, bench::BenchOptions& options) {
  command
      ->add_option("--device", options.device,
                   "host; or cuda, cuda:I, cuda:I,cuda:J: put, get, sendrecv, batch (also as one "
                   "list), connect, pingpong between GPUs")
      ->capture_default_str();
  command->add_flag("--suite", options.suite, "GPUs: the whole table of what must be reached");
  command->add_option("--window", options.window, "GPUs: messages in flight")
      ->check(wholeNumber(1));
  command->add_flag("--prepared", options.prepared, "GPUs: posts of a plan");
  command->add_option("--ctas", options.ctas, "GPUs: thread blocks of the kernel (engine sm)")
      ->check(wholeNumber(1));
}

CommandEnd runAsAsked(const bench::BenchOptions& options) {
  // A wrong variable is kInvalidArgument, too, and no fault of the command line.
  PEERLANE_RETURN_IF_ERROR(Config::fromEnvironment().status());
  if (!options.jsonFile.empty())
    if (const Status json = bench::BenchReport::checkJsonFile(options.jsonFile); !json.isOk())
      return CommandEnd::notRead(json);
  return CommandEnd::notRead(options.operation == "port" ? bench::runPortBench(options, std::cout)
                             : options.api == "p2p"      ? bench::runP2pBench(options, std::cout)
                             : options.isForGpus()       ? bench::runGpuBench(options, std::cout)
                                                         : bench::runBench(options, std::cout));
}

void addChildren(CLI::App& app, int& exitCode) {
  CLI::App* child = app.add_subcommand(bench::BenchPair::kChildCommand);
  child->group("");  // not for people: absent from the help
  child->callback([&exitCode] { exitCode = bench::runBenchChild(bench::BenchPair::kChildPipe); });
  auto pipe = std::make_shared<int>(-1);
  CLI::App* gpuChild = app.add_subcommand(bench::kGpuChildCommand);
  gpuChild->group("");
  gpuChild->add_option("pipe", *pipe)->required();
  gpuChild->callback([pipe, &exitCode] { exitCode = bench::runGpuBenchChild(*pipe); });
}

}  // namespace

void addBenchCommand(CLI::App& app, int& exitCode) {
  auto options = std::make_shared<bench::BenchOptions>();
  CLI::App* command = app.add_subcommand(
      "bench", "Measure transfers between two processes, and the raw limit of this machine");
  describe(command, *options);
  describeReport(command, *options);
  describeGpus(command, *options);
  command->callback([options, &exitCode] { exitCode = runAsAsked(*options).report(); });
  addChildren(app, exitCode);
}

}  // namespace peerlane
