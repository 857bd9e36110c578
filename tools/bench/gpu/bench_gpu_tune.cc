// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/gpu/bench_gpu_tune.h"

#include <cstdio>
#include <vector>

#include "peerlane/core/text.h"
#include "tools/bench/sides/bench_tune_file.h"
#include "tools/measure/byte_units.h"

namespace peerlane::bench {
namespace {

constexpr uint64_t kMostBytes = 256 * kMiB;
constexpr uint64_t kBlocks = 16;
constexpr uint64_t kQueued = 16;  // posts of a plan in flight, on streams of the library's
// An engine must be this much faster to be preferred: thresholds are not worth noise.
constexpr double kMargin = 1.01;
// An engine whose range begins at this size is never chosen.
constexpr uint64_t kNever = uint64_t{1} << 40;

struct Point {
  uint64_t bytes = 0;  // of a block
  double inlined = 0;  // microseconds
  double kernel = 0;
  double copyEngine = 0;
};

class Tuning {
 public:
  Tuning(GpuPair& pair, GpuReport& report) : pair_(pair), report_(report) {}

  Result<std::vector<Point>> measure(bool isPut, uint64_t blocks, uint64_t from,
                                     uint64_t window = 1) {
    std::vector<Point> points;
    for (uint64_t bytes = from; bytes <= kMostBytes; bytes *= 2) {
      Point point;
      point.bytes = bytes;
      GpuCase what;
      what.isPut = isPut;
      what.blocks = blocks;
      what.blockBytes = bytes;
      what.window = window;
      what.unordered = window > 1;
      if (window > 1) what.posting = GpuPosting::kPlan;
      if (blocks == 1 && window == 1 && bytes <= kMiB) {
        PEERLANE_ASSIGN(point.inlined, timeOf(what, Engine::kInline));
      }
      PEERLANE_ASSIGN(point.kernel, timeOf(what, Engine::kSm));
      PEERLANE_ASSIGN(point.copyEngine, timeOf(what, Engine::kCe));
      char line[160];
      std::snprintf(line, sizeof(line),
                    "%s %3llu x %9s, %2llu in flight  inline %9.2f us  sm %9.2f us  ce %9.2f us",
                    isPut ? "put" : "get", static_cast<unsigned long long>(blocks),
                    formatByteSize(bytes).c_str(), static_cast<unsigned long long>(window),
                    point.inlined, point.kernel, point.copyEngine);
      report_.say(line);
      points.push_back(point);
      if (blocks * bytes >= 2 * kMostBytes) break;
    }
    return points;
  }

 private:
  Result<double> timeOf(GpuCase what, Engine engine) {
    what.engine = engine;
    GpuContestSettings settings;
    settings.ceiling = false;
    PEERLANE_ASSIGN(const GpuOutcome measured, runGpuContest(pair_, what, settings));
    if (measured.outcome.wrong > 0)
      return Status(Code::kCorrupt, std::to_string(measured.outcome.wrong) +
                                        " bytes arrived wrong with engine " + engineName(engine));
    return measured.outcome.ours.median();
  }

  GpuPair& pair_;
  GpuReport& report_;
};

// The smallest size from which on the copy engine is the faster one for good.
uint64_t copyEngineFrom(const std::vector<Point>& points) {
  uint64_t from = kNever;
  for (size_t i = points.size(); i-- > 0;) {
    if (points[i].copyEngine * kMargin > points[i].kernel) break;
    from = points[i].bytes;
  }
  return from;
}

// The largest size up to which the one small launch is no slower than both others.
uint64_t inlineUpTo(const std::vector<Point>& puts, const std::vector<Point>& gets) {
  uint64_t upTo = 0;
  for (size_t i = 0; i < puts.size() && i < gets.size(); ++i) {
    bool best = true;
    for (const Point* point : {&puts[i], &gets[i]})
      best = best && point->inlined > 0 && point->inlined <= point->kernel * kMargin &&
             point->inlined <= point->copyEngine * kMargin;
    if (!best) break;
    upTo = puts[i].bytes;
  }
  return upTo;
}

}  // namespace

uint64_t gpuTuneRegionBytes() {
  return 2 * kMostBytes;
}

Status runGpuTune(GpuPair& pair, const std::string& file, GpuReport& report) {
  Tuning tuning(pair, report);
  PEERLANE_ASSIGN(const std::vector<Point> puts, tuning.measure(true, 1, kKiB));
  PEERLANE_ASSIGN(const std::vector<Point> queued, tuning.measure(true, 1, kKiB, kQueued));
  PEERLANE_ASSIGN(const std::vector<Point> gets, tuning.measure(false, 1, kKiB));
  PEERLANE_ASSIGN(const std::vector<Point> lists, tuning.measure(true, kBlocks, 64 * kKiB));
  PEERLANE_ASSIGN(const std::string copies,
                  copyThresholds([&report](const std::string& said) { report.say(said); }));
  const auto line = [](const char* name, uint64_t bytes) {
    return std::string(name) + " = " + std::to_string(bytes) + "\n";
  };
  const std::string text =
      "# Measured by peerlane bench --tune on " + pair.side().model().name +
      "; use: PEERLANE_TUNE=" + file + "\n" + line("inline", inlineUpTo(puts, gets)) +
      line("ce_put", copyEngineFrom(puts)) + line("ce_put_queued", copyEngineFrom(queued)) +
      line("ce_get", copyEngineFrom(gets)) + line("ce_block", copyEngineFrom(lists)) + copies;
  PEERLANE_RETURN_IF_ERROR(writeTuneFile(file, text));
  report.say(text + "# written to " + file);
  return Status::ok();
}

}  // namespace peerlane::bench
