// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/gpu/bench_gpu_posting.h"

#include <fmt/format.h>

#include "peerlane/core/text.h"
#include "tools/bench/gpu/bench_gpu_contest.h"
#include "tools/measure/byte_units.h"

namespace peerlane::bench {
namespace {

constexpr uint64_t kBlocks = 16384;
constexpr uint64_t kMostBytes = uint64_t{1} << 30;

// The median time of our calls; beside it that of the raw calls, where they are measured.
Status addRow(GpuPair& pair, const GpuCase& what, const std::string& name, double most,
              bool withRaw, GpuReport& report) {
  GpuRow row;
  row.name = name;
  row.row.operation = "posting";
  row.row.bytes = what.messageBytes();
  row.row.blocks = what.blocks;
  row.unit = "us";
  if (most > 0) row.target = {GpuGoal::kMost, most};
  GpuContestSettings settings;
  settings.ceiling = withRaw;
  settings.rounds = 31;
  auto measured = runGpuContest(pair, what, settings);
  if (measured.status().code() == Code::kPeerLost) return measured.status();
  row.failure = measured.status();
  if (measured.isOk()) {
    row.value = measured->posting.median();
    row.row.outcome.wrong = measured->outcome.wrong;
    if (!measured->rawPosting.empty()) {
      row.row.extras["ceiling_posting_us"] = measured->rawPosting.median();
      row.note = fmt::format("raw {:.2f} us", measured->rawPosting.median());
    }
    if (what.blocks > 1)
      row.note =
          fmt::format("{:.1f} ns a block", row.value * 1e3 / static_cast<double>(what.blocks));
  }
  report.add(std::move(row));
  return Status::ok();
}

// A post that takes longer for a larger piece, while a raw one does not, has work by size.
Status addSizes(GpuPair& pair, GpuReport& report) {
  for (const bool isPut : {true, false}) {
    report.section(std::string("host time to post one ") + (isPut ? "put" : "get"));
    for (uint64_t bytes = 4 * kKiB; bytes <= kMostBytes; bytes *= 4) {
      GpuCase what;
      what.isPut = isPut;
      what.blockBytes = bytes;
      what.raw = contiguousRaw(isPut, bytes);
      PEERLANE_RETURN_IF_ERROR(addRow(pair, what,
                                      std::string(isPut ? "put " : "get ") + formatByteSize(bytes),
                                      0, true, report));
    }
  }
  return Status::ok();
}

// What a large transfer leaves behind is a rest: the poster waits as long. So these rows tell
// growth with time from growth with size.
Status addRests(GpuPair& pair, GpuReport& report) {
  for (const bool isPut : {true, false}) {
    report.section(std::string("host time to post one ") + (isPut ? "put" : "get") +
                   " of 4 KiB after a rest");
    for (const int64_t rest : {0, 50, 200, 700, 2700, 20000}) {
      GpuCase what;
      what.isPut = isPut;
      what.blockBytes = 4 * kKiB;
      what.raw = contiguousRaw(isPut, what.blockBytes);
      what.rest = std::chrono::microseconds(rest);
      PEERLANE_RETURN_IF_ERROR(
          addRow(pair, what, fmt::format("{} 4KiB after {} us", isPut ? "put" : "get", rest), 0,
                 true, report));
    }
  }
  return Status::ok();
}

}  // namespace

uint64_t gpuPostingRegionBytes() {
  return kMostBytes;
}

GpuCase gpuPostedList(GpuPosting posting) {
  GpuCase what;
  what.blocks = kBlocks;
  what.blockBytes = 4 * kKiB;
  what.engine = Engine::kSm;
  what.raw = GpuRaw::kGather;
  what.posting = posting;
  return what;
}

Status addGpuPostedLists(GpuPair& pair, GpuReport& report) {
  const auto add = [&](const GpuCase& what, const char* how, double most) {
    return addRow(pair, what, std::string("host time to post 16384 blocks, ") + how, most, false,
                  report);
  };
  PEERLANE_RETURN_IF_ERROR(add(gpuPostedList(GpuPosting::kPlan), "prepared", 20));
  PEERLANE_RETURN_IF_ERROR(add(gpuPostedList(GpuPosting::kIndexed), "fresh block numbers", 100));
  // 5, 10 and 12 ns a block.
  GpuCase call = gpuPostedList(GpuPosting::kCall);
  PEERLANE_RETURN_IF_ERROR(add(call, "as one call", 82));
  call.isOffGrid = true;
  PEERLANE_RETURN_IF_ERROR(add(call, "as one call, off any grid", 164));
  call.isUneven = true;
  return add(call, "as one call, of many sizes", 196);
}

Status runGpuPosting(GpuPair& pair, GpuReport& report) {
  report.section("host time of posting");
  PEERLANE_RETURN_IF_ERROR(addGpuPostedLists(pair, report));
  PEERLANE_RETURN_IF_ERROR(addSizes(pair, report));
  return addRests(pair, report);
}

}  // namespace peerlane::bench
