// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/gpu/bench_gpu_suite.h"

#include <algorithm>
#include <cmath>

#include "peerlane/core/text.h"
#include "tools/bench/gpu/bench_gpu_lists.h"
#include "tools/bench/gpu/bench_gpu_messages.h"
#include "tools/bench/gpu/bench_gpu_posting.h"
#include "tools/measure/byte_units.h"

namespace peerlane::bench {
namespace {

constexpr uint64_t kGiB = 1 << 30;
constexpr uint64_t kManyPages = 100000;
constexpr uint64_t kPageBytes = 45 * kKiB;
// Other libraries' results on the machine whose limits are recorded (2 x H200): UCX 1.23 with 1 MiB
// puts, 128 in flight.
constexpr double kUcxPutGbps = 217;

// Rows that would begin later are not measured.
constexpr std::chrono::seconds kSuiteTime{240};

const char* postingName(GpuPosting posting) {
  switch (posting) {
    case GpuPosting::kCall: return "one call";
    case GpuPosting::kPlan: return "prepared";
    case GpuPosting::kIndexed: return "fresh block numbers";
    case GpuPosting::kDeviceIndexed: return "fresh numbers on the GPU";
  }
  return "";
}

class Suite {
 public:
  Suite(GpuPair& pair, bool ceilingsOnly, GpuReport& report)
      : pair_(pair), ceilingsOnly_(ceilingsOnly), report_(report) {
    settings_.ours = !ceilingsOnly;
  }

  Status run() {
    PEERLANE_RETURN_IF_ERROR(contiguous());
    PEERLANE_RETURN_IF_ERROR(lists());
    PEERLANE_RETURN_IF_ERROR(bothWays());
    PEERLANE_RETURN_IF_ERROR(ctas());
    if (!ceilingsOnly_) {
      PEERLANE_RETURN_IF_ERROR(hostTime());
      report_.section("set-up");
      PEERLANE_RETURN_IF_ERROR(addGpuConnectRows(pair_, 200, report_));
    }
    PEERLANE_RETURN_IF_ERROR(pingpong());
    return messages();
  }

 private:
  Status add(const GpuCase& what, const std::string& name, GpuTarget target = {}) {
    return add(what, gpuRowFor(pair_, what, name, target));
  }
  Status add(const GpuCase& what, GpuRow row) {
    if (std::chrono::steady_clock::now() < deadline_)
      return addGpuRow(pair_, what, settings_, std::move(row), report_);
    row.failure = Status(Code::kTimeout, "not measured: the time of the suite is over");
    report_.add(std::move(row));
    return Status::ok();
  }
  Status contiguous();
  Status lists();
  Status list(uint64_t blocks, uint64_t bytes, GpuPosting posting, GpuTarget target,
              bool byCopyEngine = false);
  Status bothWays();
  Status ctas();
  Status pingpong();
  Status messages();
  Status hostTime();
  Status firstPost(GpuCase what);

  GpuPair& pair_;
  const bool ceilingsOnly_;
  GpuReport& report_;
  GpuContestSettings settings_;
  const std::chrono::steady_clock::time_point deadline_ =
      std::chrono::steady_clock::now() + kSuiteTime;
};

GpuTarget contiguousTarget(bool isPut, uint64_t bytes, uint64_t window) {
  if (bytes == kGiB && window == 1) return {GpuGoal::kRatio, 0.985};
  if (!isPut) return {};
  if (bytes == 64 * kMiB) return {GpuGoal::kRatio, 0.97};
  if (bytes == kMiB) return {GpuGoal::kRatio, 0.95};
  return {};
}

Status Suite::contiguous() {
  for (const bool isPut : {true, false})
    for (const uint64_t window : {1, 16}) {
      report_.section(std::string(isPut ? "puts" : "gets") + ", one piece, " +
                      std::to_string(window) + " in flight");
      for (uint64_t bytes = 4 * kKiB; bytes <= kGiB; bytes *= 4) {
        GpuCase what;
        what.isPut = isPut;
        what.blockBytes = bytes;
        what.window = window;
        what.raw = contiguousRaw(isPut, bytes);
        PEERLANE_RETURN_IF_ERROR(add(what,
                                     std::string(isPut ? "put " : "get ") + formatByteSize(bytes) +
                                         ", " + std::to_string(window) + " in flight",
                                     contiguousTarget(isPut, bytes, window)));
      }
    }
  report_.section("1 MiB, prepared");
  for (const uint64_t window : {1, 16}) {
    GpuCase what;
    what.blockBytes = kMiB;
    what.window = window;
    what.posting = GpuPosting::kPlan;
    PEERLANE_RETURN_IF_ERROR(
        add(what, "put 1MiB, " + std::to_string(window) + " in flight, prepared"));
  }
  report_.section("UCX's pattern: 1 MiB puts, 128 in flight");
  for (const GpuPosting posting : {GpuPosting::kCall, GpuPosting::kPlan}) {
    GpuCase what;
    what.blockBytes = kMiB;
    what.window = 128;
    what.posting = posting;
    what.unordered = true;  // UCX orders them as little
    PEERLANE_RETURN_IF_ERROR(add(what,
                                 std::string("put 1MiB, 128 in flight, ") + postingName(posting),
                                 {GpuGoal::kGbpsAbove, kUcxPutGbps}));
  }
  return Status::ok();
}

Status Suite::list(uint64_t blocks, uint64_t bytes, GpuPosting posting, GpuTarget target,
                   bool byCopyEngine) {
  GpuCase what;
  what.blocks = blocks;
  what.blockBytes = bytes;
  what.posting = posting;
  what.engine = byCopyEngine ? Engine::kCe : Engine::kSm;
  what.raw = byCopyEngine ? GpuRaw::kBatch : GpuRaw::kGather;
  return add(what,
             "put " + std::to_string(blocks) + " x " + formatByteSize(bytes) + ", " +
                 postingName(posting) + (byCopyEngine ? ", copy engine" : ""),
             target);
}

Status Suite::lists() {
  report_.section("lists: places new, permuted here and there");
  const GpuTarget ratio95{GpuGoal::kRatio, 0.95};
  const GpuTarget ratio90{GpuGoal::kRatio, 0.9};
  using enum GpuPosting;
  PEERLANE_RETURN_IF_ERROR(list(128, 512 * kKiB, kCall, ratio95));
  PEERLANE_RETURN_IF_ERROR(list(128, 512 * kKiB, kCall, ratio95, true));
  PEERLANE_RETURN_IF_ERROR(list(128, 512 * kKiB, kPlan, {}));
  PEERLANE_RETURN_IF_ERROR(list(4096, 16 * kKiB, kCall, {GpuGoal::kRatio, 0.85}));
  PEERLANE_RETURN_IF_ERROR(list(4096, 16 * kKiB, kPlan, {GpuGoal::kGbps, 330}));
  PEERLANE_RETURN_IF_ERROR(list(4096, 16 * kKiB, kIndexed, {GpuGoal::kGbps, 320}));
  PEERLANE_RETURN_IF_ERROR(list(16384, 4 * kKiB, kCall, {GpuGoal::kRatio, 0.75}));
  PEERLANE_RETURN_IF_ERROR(list(16384, 4 * kKiB, kPlan, {GpuGoal::kGbps, 300}));
  PEERLANE_RETURN_IF_ERROR(list(16384, 4 * kKiB, kIndexed, {GpuGoal::kGbps, 290}));
  PEERLANE_RETURN_IF_ERROR(list(16384, 4 * kKiB, kDeviceIndexed, {}));
  PEERLANE_RETURN_IF_ERROR(list(kManyPages, kPageBytes, kIndexed, ratio95));
  for (const GpuPosting posting : {kCall, kPlan}) {
    PEERLANE_RETURN_IF_ERROR(list(31, 73 * kKiB, posting, ratio90));
    PEERLANE_RETURN_IF_ERROR(list(256, 71 * kKiB, posting, ratio90));
  }
  // The same, got.
  for (const auto& [blocks, bytes, posting] :
       {std::tuple<uint64_t, uint64_t, GpuPosting>{128, 512 * kKiB, kCall},
        {4096, 16 * kKiB, kPlan},
        {16384, 4 * kKiB, kIndexed}}) {
    GpuCase what;
    what.isPut = false;
    what.blocks = blocks;
    what.blockBytes = bytes;
    what.posting = posting;
    what.engine = Engine::kSm;
    what.raw = GpuRaw::kGather;
    PEERLANE_RETURN_IF_ERROR(add(what, "get " + std::to_string(blocks) + " x " +
                                           formatByteSize(bytes) + ", " + postingName(posting)));
  }
  return Status::ok();
}

Status Suite::bothWays() {
  report_.section("both directions at once");
  GpuCase what;
  what.blockBytes = 512 * kMiB;
  what.bothWays = true;
  return add(what, "put 512 MiB both ways, total", {GpuGoal::kRatio, 0.97});
}

Status Suite::ctas() {
  report_.section("CTAs: put 256 MiB by the kernel");
  double best = 0;
  std::vector<std::pair<uint32_t, double>> ours;
  for (const uint32_t ctas : {1u, 2u, 4u, 8u, 16u, 32u, 64u, 132u}) {
    GpuCase what;
    what.blockBytes = 256 * kMiB;
    what.engine = Engine::kSm;
    what.ctas = ctas;
    what.raw = GpuRaw::kKernel;
    what.rawCtas = ctas;
    GpuRow row = gpuRowFor(pair_, what, "put 256 MiB, " + std::to_string(ctas) + " CTAs");
    row.row.operation = "put_ctas";
    const size_t before = report_.rows().size();
    PEERLANE_RETURN_IF_ERROR(add(what, std::move(row)));
    const BenchRow& measured = report_.rows().at(before).row;
    best = std::max(best, measured.ceiling().value_or(0));
    ours.emplace_back(ctas, measured.outcome.ours.empty() ? 0 : measured.gbps());
  }
  if (ceilingsOnly_) return Status::ok();
  GpuRow row;
  row.name = "CTAs for 0.95 x the SM ceiling, contiguous";
  row.row.operation = "ctas";
  row.unit = "CTAs";
  row.target = {GpuGoal::kMost, 8};
  const auto enough = std::find_if(ours.begin(), ours.end(),
                                   [&](const auto& one) { return one.second >= 0.95 * best; });
  row.value = enough == ours.end() ? INFINITY : enough->first;
  if (enough == ours.end()) row.note = "no number of CTAs reached it";
  row.row.extras["sm_ceiling_gbps"] = best;
  report_.add(std::move(row));
  return Status::ok();
}

Status Suite::pingpong() {
  // Kernels that spin for each other on one GPU wait for its time slices.
  if (pair_.isOneGpu()) return Status::ok();
  report_.section("round trips on streams: put with a signal, and the wait for it");
  return addGpuPingpongRow(pair_, 8, !ceilingsOnly_, true, report_);
}

Status Suite::messages() {
  if (pair_.isOneGpu()) return Status::ok();
  for (const bool inGraph : {false, true}) {
    report_.section(std::string("round trips: send and receive on streams, ") +
                    (inGraph ? "20 in a graph" : "one by one"));
    for (const uint64_t bytes : {uint64_t{8}, kKiB, 64 * kKiB, kMiB, 16 * kMiB}) {
      // 1.08 times as long as naive kernels.
      const GpuTarget target = bytes == 8 ? GpuTarget{GpuGoal::kRatio, 1 / 1.08} : GpuTarget{};
      PEERLANE_RETURN_IF_ERROR(
          addGpuMessageRow(pair_, bytes, inGraph, !ceilingsOnly_, target, report_));
    }
  }
  if (ceilingsOnly_) return Status::ok();
  report_.section("send and receive on streams: many pieces");
  return addGpuListRow(pair_, 128, 512 * kKiB, /*asOne=*/true, /*withCeiling=*/true,
                       {GpuGoal::kGbps, 340}, report_);
}

Status Suite::hostTime() {
  report_.section("host time of posting");
  PEERLANE_RETURN_IF_ERROR(firstPost(gpuPostedList(GpuPosting::kPlan)));
  return addGpuPostedLists(pair_, report_);
}

// From nothing to posted: the plan is made, too.
Status Suite::firstPost(GpuCase what) {
  GpuRow row;
  row.name = "host time to post 16384 blocks, first time";
  row.row.operation = "posting";
  row.unit = "us";
  row.target = {GpuGoal::kMost, 1000};
  Samples times;
  const auto once = [&]() -> Status {
    GpuCopy copy(pair_.side(), what);
    PEERLANE_RETURN_IF_ERROR(copy.place(false));
    const double start = gpuBenchNow();
    PEERLANE_RETURN_IF_ERROR(copy.makePlans());
    const double planned = gpuBenchNow();
    PEERLANE_RETURN_IF_ERROR(pair_.sample(copy, Contender::kOurs).status());
    times.add(planned - start + copy.postingMicroseconds());
    return Status::ok();
  };
  for (int i = 0; i < 9 && row.failure.isOk(); ++i) row.failure = once();
  row.value = times.median();
  const bool failed = !row.failure.isOk();
  report_.add(std::move(row));
  return failed ? pair_.recover() : Status::ok();
}

}  // namespace

uint64_t gpuSuiteRegionBytes() {
  return kManyPages * kPageBytes;
}

Status runGpuSuite(GpuPair& pair, bool ceilingsOnly, GpuReport& report) {
  return Suite(pair, ceilingsOnly, report).run();
}

GpuRow gpuRowFor(GpuPair& pair, const GpuCase& what, const std::string& name, GpuTarget target) {
  GpuRow row;
  row.name = name;
  row.target = target;
  row.row.operation = what.bothWays ? "bidirectional" : what.isPut ? "put" : "get";
  // Rows of the same name, size and window are drawn as one point.
  if (what.blocks == 1 && what.posting == GpuPosting::kPlan) row.row.operation += "_prepared";
  if (what.posting == GpuPosting::kDeviceIndexed) row.row.operation += "_device_indexed";
  row.row.memory = pair.side().setup().byCudaMalloc ? "cudamalloc" : "vmm";
  row.row.link = pair.link();
  row.row.engine = engineName(what.engine);
  row.row.bytes = what.messageBytes() * (what.bothWays ? 2 : 1);
  row.row.blocks = what.blocks;
  row.row.ceilingBy = gpuRawName(what.raw);
  row.row.extras["window"] = static_cast<double>(what.window);
  if (what.ctas > 0) row.row.extras["ctas"] = what.ctas;
  if (what.posting == GpuPosting::kIndexed) row.row.extras["indexed"] = 1;
  if (what.posting == GpuPosting::kPlan) row.row.extras["prepared"] = 1;
  return row;
}

Status addGpuRow(GpuPair& pair, const GpuCase& what, const GpuContestSettings& settings, GpuRow row,
                 GpuReport& report) {
  auto measured = runGpuContest(pair, what, settings);
  row.failure = measured.status();
  if (measured.isOk()) {
    row.row.outcome = std::move(measured->outcome);
    if (!measured->posting.empty()) row.row.extras["posting_us"] = measured->posting.median();
    if (!measured->rawPosting.empty())
      row.row.extras["ceiling_posting_us"] = measured->rawPosting.median();
    row.note = measured->noCeiling;
  }
  const Status failure = row.failure;
  report.add(std::move(row));
  return failure.code() == Code::kPeerLost ? failure : Status::ok();
}

Status addGpuConnectRows(GpuPair& pair, uint64_t samples, GpuReport& report) {
  const auto times = measureGpuConnect(pair, 5, samples);
  const auto addValue = [&](const std::string& name, const std::string& operation,
                            const std::string& unit, double value, double most) {
    GpuRow row;
    row.name = name;
    row.row.operation = operation;
    row.row.link = pair.link();
    row.unit = unit;
    row.value = value;
    row.target = {GpuGoal::kMost, most};
    return row;
  };
  GpuRow p50 = addValue("connect to first byte, p50", "connect", "us", 0, 1000);
  p50.failure = times.status();
  if (times.isOk()) {
    p50.row.outcome.wrong = times->wrong;
    p50.row.outcome.ours = times->firstByte;
    p50.row.bytes = 8;
    p50.row.isLatency = true;
    p50.value = times->firstByte.median();
    p50.row.extras["connect_only_us"] = times->connectOnly.median();
    GpuRow p99 = addValue("connect to first byte, p99", "connect_p99", "us",
                          times->firstByte.percentile(99), 2000);
    report.add(std::move(p50));
    report.add(std::move(p99));
  } else {
    report.add(std::move(p50));
    return times.status();
  }
  const GpuFootprint& footprint = pair.footprint();
  const double most = std::max(footprint.parentContext, footprint.childContext);
  report.add(addValue("device memory of one process", "device_memory", "KiB", most / 1024, 8192));
  const auto each = measureGpuPeerBytes(pair);
  GpuRow peers = addValue("device memory of one more peer", "device_memory_per_peer", "KiB", 0, 64);
  peers.failure = each.status();
  if (each.isOk()) peers.value = *each / 1024;
  report.add(std::move(peers));
  return each.status();
}

Status addGpuPingpongRow(GpuPair& pair, uint64_t bytes, bool withOurs, bool withCeiling,
                         GpuReport& report) {
  auto times = measureGpuPingpong(pair, bytes, withOurs, withCeiling);
  GpuRow row;
  row.name = "put " + formatByteSize(bytes) + " and back, round trip";
  row.row.operation = "pingpong";
  row.row.link = pair.link();
  row.row.memory = pair.side().setup().byCudaMalloc ? "cudamalloc" : "vmm";
  row.row.engine = engineName(Engine::kAuto);
  row.row.bytes = bytes;
  row.row.isLatency = true;
  row.row.ceilingBy = "naive kernels";
  row.failure = times.status();
  if (times.isOk()) {
    row.row.outcome.ours = std::move(times->ours);
    row.row.outcome.ceiling = std::move(times->ceiling);
    row.row.outcome.wrong = times->wrong;
  }
  report.add(std::move(row));
  return times.status();
}

Status addGpuMessageRow(GpuPair& pair, uint64_t bytes, bool inGraph, bool withOurs,
                        const GpuTarget& target, GpuReport& report, uint64_t samples,
                        Protocol protocol) {
  auto times = measureGpuMessages(pair, bytes, inGraph, withOurs, samples, protocol);
  GpuRow row;
  row.name =
      "send " + formatByteSize(bytes) + " and back, round trip" + (inGraph ? ", in a graph" : "");
  if (protocol == Protocol::kGet) row.name += ", by get";
  if (protocol == Protocol::kPut) row.name += ", by put";
  row.row.operation = inGraph ? "sendrecv_graph" : "sendrecv";
  row.row.link = pair.link();
  row.row.memory = pair.side().setup().byCudaMalloc ? "cudamalloc" : "vmm";
  row.row.engine = engineName(Engine::kAuto);
  row.row.bytes = bytes;
  row.row.isLatency = true;
  row.row.ceilingBy = "naive kernels";
  row.target = target;
  row.failure = times.status();
  if (times.isOk()) {
    row.row.outcome.ours = std::move(times->ours);
    row.row.outcome.ceiling = std::move(times->ceiling);
    row.row.outcome.wrong = times->wrong;
  }
  report.add(std::move(row));
  return times.status();
}

Status addGpuListRow(GpuPair& pair, uint64_t pieces, uint64_t pieceBytes, bool asOne,
                     bool withCeiling, const GpuTarget& target, GpuReport& report,
                     uint64_t samples) {
  auto times = measureGpuLists(pair, pieces, pieceBytes, asOne, withCeiling, samples);
  GpuRow row;
  row.name = std::string(asOne ? "list" : "batch") + " of " + std::to_string(pieces) + " x " +
             formatByteSize(pieceBytes) + ", " + (asOne ? "one message" : "a message each");
  row.row.operation = asOne ? "sendlist" : "batch";
  row.row.link = pair.link();
  row.row.memory = pair.side().setup().byCudaMalloc ? "cudamalloc" : "vmm";
  row.row.engine = engineName(Engine::kAuto);
  row.row.bytes = pieces * pieceBytes;
  row.row.blocks = pieces;
  row.row.ceilingBy = "gather kernel";
  row.target = target;
  row.failure = times.status();
  if (times.isOk()) {
    row.row.outcome.ours = std::move(times->ours);
    row.row.outcome.ceiling = std::move(times->ceiling);
    row.row.outcome.wrong = times->wrong;
  }
  report.add(std::move(row));
  return times.status();
}

}  // namespace peerlane::bench
