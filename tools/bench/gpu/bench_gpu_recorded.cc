// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstdio>

#include "peerlane/core/text.h"
#include "tools/bench/gpu/bench_gpu_suite.h"
#include "tools/measure/byte_units.h"

namespace peerlane::bench {
namespace {

constexpr double kLeast = 0.95;

struct Recorded {
  bool isPut;
  GpuRaw raw;
  uint64_t blocks;
  uint64_t blockBytes;
  double gbps;
};
// Two NVIDIA H200 with 18 NVLinks between them, driver 580, CUDA 13.0: medians of one run of raw
// copies without this library, back to back on a stream, between two events, without flags.
constexpr const char* kListedGpu = "NVIDIA H200";
constexpr std::array<Recorded, 9> kRecorded{{
    {true, GpuRaw::kCopyEngine, 1, 1024 * kMiB, 396.7},
    {false, GpuRaw::kCopyEngine, 1, 1024 * kMiB, 395.4},
    {true, GpuRaw::kCopyEngine, 1, 64 * kMiB, 390},
    {false, GpuRaw::kCopyEngine, 1, 64 * kMiB, 373},
    {true, GpuRaw::kBatch, 128, 512 * kKiB, 324},
    {true, GpuRaw::kGather, 128, 512 * kKiB, 362},
    {true, GpuRaw::kGather, 256, 71 * kKiB, 343},
    {true, GpuRaw::kGather, 4096, 16 * kKiB, 360},
    {true, GpuRaw::kGather, 16384, 4 * kKiB, 347},
}};

Result<double> measureBare(GpuPair& pair, const Recorded& recorded) {
  GpuCase what;
  what.isPut = recorded.isPut;
  what.blocks = recorded.blocks;
  what.blockBytes = recorded.blockBytes;
  what.raw = recorded.raw;
  GpuCopy copy(pair.side(), what);
  PEERLANE_RETURN_IF_ERROR(copy.begin(true));
  GpuTimes times;
  PEERLANE_RETURN_IF_ERROR(measureGpu(
      pair.side().stream().handle(), {.warmup = 3, .samples = 9, .perSample = 1},
      [&](uint64_t) { return copy.postBare(); }, times));
  return static_cast<double>(what.messageBytes()) / times.device.median() / 1e3;
}

std::string nameOf(const Recorded& recorded) {
  const std::string blocks =
      recorded.blocks > 1 ? std::to_string(recorded.blocks) + " x " : std::string();
  return std::string(recorded.isPut ? "put " : "get ") + blocks +
         formatByteSize(recorded.blockBytes) + " by the " + gpuRawName(recorded.raw);
}

}  // namespace

Status checkRecordedCeilings(GpuPair& pair, GpuReport& report) {
  if (pair.isOneGpu() || pair.side().model().name != kListedGpu) return Status::ok();
  report.section("raw limits against those recorded for this GPU");
  std::string low;
  for (const Recorded& recorded : kRecorded) {
    const auto measured = measureBare(pair, recorded);
    if (measured.status().code() == Code::kNotSupported) continue;
    if (!measured.isOk()) return measured.status().withContext(nameOf(recorded));
    const double part = *measured / recorded.gbps;
    char line[160];
    std::snprintf(line, sizeof(line), "%-50s %8.1f GB/s, recorded %.1f: %.3f%s",
                  nameOf(recorded).c_str(), *measured, recorded.gbps, part,
                  part < kLeast ? "  LOW" : "");
    report.say(line);
    if (part < kLeast) low += (low.empty() ? "" : "; ") + std::string(line);
  }
  if (low.empty()) return Status::ok();
  return Status(Code::kUnavailable,
                "raw limits are below 0.95 of those recorded on this GPU, so that the rows say "
                "little: " +
                    low);
}

}  // namespace peerlane::bench
