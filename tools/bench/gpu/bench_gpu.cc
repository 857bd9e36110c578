// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/gpu/bench_gpu.h"

#include <algorithm>

#include "peerlane/core/text.h"
#include "tools/bench/gpu/bench_gpu_lists.h"
#include "tools/bench/gpu/bench_gpu_posting.h"
#include "tools/bench/gpu/bench_gpu_suite.h"
#include "tools/bench/gpu/bench_gpu_tune.h"

namespace peerlane::bench {
namespace {

constexpr uint64_t kMostRegionBytes = uint64_t{4608} << 20;

Engine engineOf(const std::string& name) {
  for (const Engine engine : {Engine::kCe, Engine::kSm, Engine::kInline})
    if (name == engineName(engine)) return engine;
  return Engine::kAuto;
}

bool isWholeTable(const BenchOptions& options) {
  return options.suite || options.operation.empty();
}

bool isCopy(const BenchOptions& options) {
  return options.operation == "put" || options.operation == "get";
}

GpuCase caseOf(const BenchOptions& options, uint64_t bytes) {
  GpuCase what;
  what.isPut = options.operation == "put";
  what.blockBytes = options.isScattered() ? options.blockBytes : bytes;
  what.blocks = options.isScattered() ? options.blocks : 1;
  what.window = options.window;
  if (options.prepared) what.posting = GpuPosting::kPlan;
  if (options.indexed) what.posting = GpuPosting::kIndexed;
  what.engine = engineOf(options.engine);
  what.ctas = static_cast<uint32_t>(options.ctas);
  what.rawCtas = what.ctas;
  if (options.isScattered())
    what.raw = what.engine == Engine::kCe ? GpuRaw::kBatch : GpuRaw::kGather;
  else if (what.engine == Engine::kSm)
    what.raw = GpuRaw::kKernel;
  else if (what.engine == Engine::kAuto)
    what.raw = contiguousRaw(what.isPut, bytes);
  return what;
}

uint64_t regionBytesFor(const BenchOptions& options) {
  if (!options.tuneFile.empty()) return gpuTuneRegionBytes();
  if (isWholeTable(options)) return gpuSuiteRegionBytes();
  uint64_t most = 1 << 20;
  if (options.operation == "post") return gpuPostingRegionBytes();
  if (options.operation == "batch")
    return std::max(most, gpuListBytes(options.blocks, options.blockBytes));
  if (!isCopy(options)) return std::max(most, options.endBytes);
  for (const uint64_t bytes : sweep(options)) {
    const GpuCase what = caseOf(options, bytes);
    // A window goes round in places, where there is not room for all of it.
    const uint64_t room = std::max(what.stride(), kMostRegionBytes);
    most = std::max(most, what.blocks > 1 ? what.stride() * what.blocks
                                          : std::min(what.stride() * what.window, room));
  }
  return most;
}

Status runCopies(GpuPair& pair, const BenchOptions& options, GpuReport& report) {
  GpuContestSettings settings;
  settings.ceiling = options.ceiling;
  settings.checkAll = options.check;
  settings.rounds = options.samples;
  settings.warmup = options.warmup;
  for (const uint64_t bytes : sweep(options)) {
    const GpuCase what = caseOf(options, bytes);
    std::string name = options.operation + " ";
    if (what.blocks > 1) name += std::to_string(what.blocks) + " x ";
    name += formatByteSize(what.blockBytes);
    if (what.window > 1) name += ", " + std::to_string(what.window) + " in flight";
    PEERLANE_RETURN_IF_ERROR(addGpuRow(pair, what, settings, gpuRowFor(pair, what, name), report));
  }
  return Status::ok();
}

Status runMessages(GpuPair& pair, const BenchOptions& options, GpuReport& report) {
  const Protocol protocol = options.protocol == "get"   ? Protocol::kGet
                            : options.protocol == "put" ? Protocol::kPut
                                                        : Protocol::kAuto;
  for (const bool inGraph : {false, true})
    for (const uint64_t bytes : sweep(options))
      PEERLANE_RETURN_IF_ERROR(
          addGpuMessageRow(pair, bytes, inGraph, true, {}, report, options.samples, protocol));
  return Status::ok();
}

// The same list both ways; the raw limit is that of both.
Status runBatches(GpuPair& pair, const BenchOptions& options, GpuReport& report) {
  for (const bool asOne : {false, true})
    PEERLANE_RETURN_IF_ERROR(addGpuListRow(pair, options.blocks, options.blockBytes, asOne,
                                           options.ceiling, {}, report, options.samples));
  return Status::ok();
}

Status dispatch(GpuPair& pair, const BenchOptions& options, GpuReport& report) {
  if (!options.tuneFile.empty()) return runGpuTune(pair, options.tuneFile, report);
  if (isWholeTable(options)) return runGpuSuite(pair, !options.suite, report);
  if (isCopy(options)) return runCopies(pair, options, report);
  if (options.operation == "connect")
    return addGpuConnectRows(pair, samplesFor(options, 8), report);
  if (options.operation == "batch") return runBatches(pair, options, report);
  if (options.operation == "post") return runGpuPosting(pair, report);
  if (options.operation == "sendrecv") return runMessages(pair, options, report);
  for (const uint64_t bytes : sweep(options))
    PEERLANE_RETURN_IF_ERROR(addGpuPingpongRow(pair, bytes, true, options.ceiling, report));
  return Status::ok();
}

GpuReportHead headOf(GpuPair& pair) {
  const GpuSetup& setup = pair.side().setup();
  const std::string& name = pair.side().model().name;
  GpuReportHead head;
  head.gpus = {"cuda:" + std::to_string(setup.gpu) + " " + name};
  if (!pair.isOneGpu())
    head.gpus.push_back("cuda:" + std::to_string(setup.otherGpu) + " " + nameOfGpu(setup.otherGpu));
  head.versions = gpuVersions();
  head.route = pair.link();
  return head;
}

}  // namespace

Status runGpuBench(const BenchOptions& given, std::ostream& out) {
  BenchOptions options = given;
  PEERLANE_RETURN_IF_ERROR(completeForGpus(options));
  PEERLANE_ASSIGN(const std::vector<int> gpus, gpusOf(options));
  const std::string link = options.isOverNetwork() ? options.link : "";
  GpuReport report(out);
  Status status;
  {
    PEERLANE_ASSIGN(auto pair, GpuPair::create(gpus, options.memory == "cudamalloc", link,
                                               regionBytesFor(options)));
    report.begin(headOf(*pair));
    Status recorded;
    if (isWholeTable(options) && options.tuneFile.empty())
      recorded = checkRecordedCeilings(*pair, report);
    status = dispatch(*pair, options, report);
    if (status.isOk()) status = recorded;
  }
  if (isWholeTable(options)) report.summarize();
  if (!options.jsonFile.empty())
    PEERLANE_RETURN_IF_ERROR(report.writeJson(options.jsonFile, options.appendJson));
  PEERLANE_RETURN_IF_ERROR(status);
  return report.verdict();
}

}  // namespace peerlane::bench
