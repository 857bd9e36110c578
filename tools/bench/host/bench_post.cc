// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/host/bench_post.h"

#include <algorithm>

#include "tools/bench/sides/bench_row.h"
#include "tools/ceiling/ceiling_copy.h"
#include "tools/memory/byte_pattern.h"

namespace peerlane::bench {
namespace {

constexpr uint64_t kWindow = 64;
constexpr auto kPostPatience = std::chrono::seconds(60);

// Windows per sample: about 50 us of small posts, one window of large ones.
uint64_t windowsFor(uint64_t bytes) {
  return std::clamp<uint64_t>((uint64_t{1} << 20) / (bytes * kWindow), 1, 16);
}

class PostRow {
 public:
  PostRow(BenchPair& pair, uint64_t bytes)
      : pair_(pair), bytes_(bytes), windows_(windowsFor(bytes)) {}

  Status begin() {
    BenchEndpoint& endpoint = pair_.endpoint();
    const Block block{&endpoint.source(), 0, &endpoint.otherDestination().remote, 0, bytes_};
    PEERLANE_ASSIGN(plan_, Plan::create(endpoint.peer(), Direction::kPut, {&block, 1}));
    const OtherRegion& to = endpoint.otherDestination();
    raw_ = {endpoint.source().data(), to.mapping ? to.mapping->data() : nullptr, to.address,
            bytes_};
    return Status::ok();
  }

  // Returns its name.
  Result<std::string> chooseWay() {
    const auto trial = [this](CopyWay way) -> Result<double> {
      way_ = way;
      PEERLANE_RETURN_IF_ERROR(prepare(false));
      Samples samples;
      PEERLANE_RETURN_IF_ERROR(sample(Contender::kCeiling, samples));
      return samples.median();
    };
    PEERLANE_ASSIGN(way_, fastestWay(copyWays(raw_.other != nullptr, true), trial));
    return nameOf(way_, true);
  }

  // The source changes between samples only: within one, the point is the same buffer every time.
  Status prepare(bool checked) {
    fillPattern({pair_.endpoint().source().data(), bytes_}, seeds_.next());
    return checked ? pair_.fillOther(false, bytes_, otherThan(seeds_.last())) : Status::ok();
  }

  Status sample(Contender who, Samples& samples) {
    const Clock::time_point start = Clock::now();
    for (uint64_t i = 0; i < windows_; ++i)
      PEERLANE_RETURN_IF_ERROR(who == Contender::kOurs ? window() : rawWindow());
    samples.add(microsecondsSince(start) / static_cast<double>(windows_ * kWindow));
    return Status::ok();
  }

  Result<uint64_t> check() {
    const VerifyPiece piece{0, 0, bytes_};
    return pair_.verifyOther({seeds_.last(), 0}, {&piece, 1});
  }

 private:
  Status window() {
    for (uint64_t i = 0; i < kWindow; ++i) {
      const auto posted = plan_.post();
      if (!posted) [[unlikely]]
        PEERLANE_RETURN_IF_ERROR(postAgain(posted.status()));
      last_ = posted.isOk() ? *posted : last_;
    }
    return flush(pair_.endpoint().peer(), kPostPatience);
  }
  // A plan runs once at a time: where an agent carries posts out, the last one is waited for.
  Status postAgain(Status why) {
    while (why.code() == Code::kTryAgain) {
      PEERLANE_RETURN_IF_ERROR(last_.wait(kPostPatience));
      auto posted = plan_.post();
      if (posted) {
        last_ = *posted;
        return Status::ok();
      }
      why = posted.status();
    }
    return why;
  }
  Status rawWindow() {
    for (uint64_t i = 0; i < kWindow; ++i)
      PEERLANE_RETURN_IF_ERROR(copyPieces(way_, pair_.child(), {&raw_, 1}, true));
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return Status::ok();
  }

  BenchPair& pair_;
  const uint64_t bytes_;
  const uint64_t windows_;
  CopyWay way_ = CopyWay::kMemcpy;
  Seeds seeds_;
  Plan plan_;
  Transfer last_;
  RawPiece raw_;
};

}  // namespace

Status benchPost(BenchPair& pair, const BenchOptions& options, BenchReport& report) {
  const std::string engine = pair.engine();
  for (const uint64_t bytes : sweep(options)) {
    PostRow row(pair, bytes);
    PEERLANE_RETURN_IF_ERROR(row.begin());
    Contest contest = contestFor(options, bytes * kWindow * windowsFor(bytes));
    contest.prepare = [&row](Contender, bool checked) { return row.prepare(checked); };
    contest.sample = [&row](Contender who, Samples& out) { return row.sample(who, out); };
    contest.check = [&row](Contender) { return row.check(); };
    contest.withCeiling = options.ceiling && (engine == "mapped" || engine == "cma");
    std::string ceilingBy;
    if (contest.withCeiling) {
      PEERLANE_ASSIGN(ceilingBy, row.chooseWay());
      ceilingBy += ", one buffer";
    }
    PEERLANE_ASSIGN(Outcome outcome, runContest(contest));
    const double median = outcome.ours.median();
    BenchRow line = rowFor(pair, options, bytes);
    line.ceilingBy = ceilingBy;
    line.outcome = std::move(outcome);
    line.extras["Mposts_per_s"] = median > 0 ? 1 / median : 0;
    report.add(std::move(line));
  }
  return Status::ok();
}

}  // namespace peerlane::bench
