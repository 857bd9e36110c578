// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/host/bench_cancel.h"

#include <thread>

#include "tools/bench/sides/bench_row.h"
#include "tools/ceiling/ceiling_copy.h"

namespace peerlane::bench {
namespace {

constexpr auto kCancelPatience = std::chrono::seconds(60);
// Long enough to be well under way, and not nearly done.
constexpr auto kHeadStart = std::chrono::milliseconds(10);

class CancelRow {
 public:
  CancelRow(BenchEndpoint& endpoint, bool isPut, uint64_t bytes)
      : endpoint_(endpoint),
        isPut_(isPut),
        block_{isPut ? &endpoint.source() : &endpoint.destination(), 0,
               isPut ? &endpoint.otherDestination().remote : &endpoint.otherSource().remote, 0,
               bytes} {}

  Status sample(Samples& samples) {
    for (int tries = 0; tries < kMostTries; ++tries) {
      PEERLANE_ASSIGN(const bool cancelled, cancelOne(samples));
      if (!cancelled) continue;
      // The connection goes on.
      Block few = block_;
      few.bytes = std::min<uint64_t>(few.bytes, 4096);
      PEERLANE_ASSIGN(const Transfer next, post(few));
      return next.wait(kCancelPatience);
    }
    return Status(Code::kUnavailable, std::to_string(block_.bytes) +
                                          " bytes were moved before cancel() was called; "
                                          "give more with -b and -e");
  }

 private:
  // A thread that is kept from running may come too late.
  static constexpr int kMostTries = 20;

  Result<bool> cancelOne(Samples& samples) const {
    PEERLANE_ASSIGN(const Transfer posted, post(block_));
    std::this_thread::sleep_for(kHeadStart);
    const Clock::time_point start = Clock::now();
    posted.cancel();
    const Status ended = posted.wait(kCancelPatience);
    if (ended.code() == Code::kCancelled) {
      samples.add(microsecondsSince(start));
      return true;
    }
    PEERLANE_RETURN_IF_ERROR(ended);
    return false;
  }
  Result<Transfer> post(const Block& block) const {
    return isPut_ ? put(endpoint_.peer(), {&block, 1}) : get(endpoint_.peer(), {&block, 1});
  }

  BenchEndpoint& endpoint_;
  const bool isPut_;
  const Block block_;
};

}  // namespace

Status benchCancel(BenchPair& pair, const BenchOptions& options, BenchReport& report) {
  for (const uint64_t bytes : sweep(options)) {
    for (const bool isPut : {true, false}) {
      CancelRow cancel(pair.endpoint(), isPut, bytes);
      Contest contest = contestFor(options, bytes);
      contest.prepare = [](Contender, bool) { return Status::ok(); };
      contest.sample = [&](Contender, Samples& samples) { return cancel.sample(samples); };
      // The bytes that were moved are undefined.
      contest.check = [](Contender) -> Result<uint64_t> { return uint64_t{0}; };
      contest.withCeiling = false;
      PEERLANE_ASSIGN(Outcome outcome, runContest(contest));
      BenchRow row = rowFor(pair, options, bytes);
      row.operation = isPut ? "cancel" : "cancel_get";
      row.isLatency = true;
      row.movesAll = false;
      row.outcome = std::move(outcome);
      report.add(std::move(row));
    }
  }
  return Status::ok();
}

}  // namespace peerlane::bench
