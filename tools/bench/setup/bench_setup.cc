// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/setup/bench_setup.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "tools/bench/sides/bench_row.h"
#include "tools/ceiling/ceiling_copy.h"
#include "tools/memory/byte_pattern.h"

namespace peerlane::bench {
namespace {

constexpr auto kSetupPatience = std::chrono::seconds(60);
constexpr std::array<uint64_t, 4> kCounts = {1, 500, 4000, 16000};
constexpr uint64_t kLaterPuts = 5;  // of each cycle

std::vector<uint64_t> countsOf(const BenchOptions& options) {
  if (options.blocks != 0) return {options.blocks};
  return {kCounts.begin(), kCounts.end()};
}

uint64_t cyclesOf(const BenchOptions& options, uint64_t count) {
  if (options.samples != 0) return options.samples;
  return std::clamp<uint64_t>(20000 / count, 5, 31);
}

// What is timed, in the order of a cycle.
enum Step : uint8_t {
  kRegister,
  kImport,
  kFirstPut,
  kPutApart,
  kPutInOne,
  kUnregisterImported,
  kUnregister,
  kSteps,
};
struct StepNames {
  const char* row;
  const char* title;
};
constexpr std::array<StepNames, kSteps> kNames{{
    {"register", "register, one call each"},
    {"announce + import", "announce and import: references through a pipe, and prepareAll"},
    {"first put", "the first put of a block of each, registered apart"},
    {"put registered apart", "later puts of a block of each, registered apart"},
    {"put in one registration", "the same blocks in one registration"},
    {"unregister imported", "unregister, in one call, what the other process has imported"},
    {"unregister", "unregister, one call each, what is this process's alone"},
}};

// The regions' whole life, again and again.
class SetupCycles {
 public:
  SetupCycles(BenchPair& pair, std::unique_ptr<RegionPieces> pieces)
      : pair_(pair), endpoint_(pair.endpoint()), pieces_(std::move(pieces)) {}

  // An untimed one, and `cycles` more.
  Status run(uint64_t cycles) {
    for (uint64_t i = 0; i <= cycles; ++i) {
      if (i == 1) samples_ = {};
      PEERLANE_RETURN_IF_ERROR(cycle());
    }
    return Status::ok();
  }
  const Samples& samples(Step step) const { return samples_[step]; }
  uint64_t wrong() const { return wrong_; }

 private:
  template <typename Act>
  Status timed(Step step, const Act& act) {
    const Clock::time_point start = Clock::now();
    PEERLANE_RETURN_IF_ERROR(act());
    samples_[step].add(microsecondsSince(start));
    return Status::ok();
  }
  Status cycle();
  Status importAll();
  Status putBlocks(const std::vector<Block>& blocks) const;
  void makeBlocks();
  Status puts();
  Status check();
  Status endOther();

  BenchPair& pair_;
  BenchEndpoint& endpoint_;
  const std::unique_ptr<RegionPieces> pieces_;
  std::vector<RemoteRegion> remotes_;
  std::vector<Block> apart_, inOne_;
  std::array<Samples, kSteps> samples_;
  Seeds seeds_;
  uint64_t wrong_ = 0;
};

Status SetupCycles::importAll() {
  PEERLANE_RETURN_IF_ERROR(pair_.pipe().send(kSharePieces, {}));
  PEERLANE_ASSIGN(const BenchMessage answer, receiveKind(pair_.pipe(), kReferencesAre));
  constexpr size_t kEach = RegionReference::kEncodedBytes;
  for (size_t at = 0; at < answer.content.size(); at += kEach) {
    PEERLANE_ASSIGN(RemoteRegion remote,
                    endpoint_.peer().importRegion(std::span(answer.content).subspan(at, kEach)));
    remotes_.push_back(std::move(remote));
  }
  return prepareAll(remotes_, kSetupPatience);
}

Status SetupCycles::putBlocks(const std::vector<Block>& blocks) const {
  PEERLANE_ASSIGN(const Transfer posted, put(endpoint_.peer(), blocks));
  return posted.wait(kSetupPatience);
}

void SetupCycles::makeBlocks() {
  apart_.clear();
  inOne_.clear();
  for (uint64_t i = 0; i < pieces_->count(); ++i) {
    const uint64_t at = i * RegionPieces::kStride;
    apart_.push_back({&pieces_->regions()[i], 0, &remotes_[i], 0, RegionPieces::kBytes});
    inOne_.push_back(
        {&endpoint_.source(), at, &endpoint_.otherDestination().remote, at, RegionPieces::kBytes});
  }
}

Status SetupCycles::puts() {
  makeBlocks();
  fillPattern({pieces_->data(), pieces_->allBytes()}, seeds_.next());
  PEERLANE_RETURN_IF_ERROR(timed(kFirstPut, [this] { return putBlocks(apart_); }));
  for (uint64_t i = 0; i < kLaterPuts; ++i) {
    PEERLANE_RETURN_IF_ERROR(timed(kPutApart, [this] { return putBlocks(apart_); }));
    PEERLANE_RETURN_IF_ERROR(timed(kPutInOne, [this] { return putBlocks(inOne_); }));
  }
  return check();
}

Status SetupCycles::check() {
  PEERLANE_RETURN_IF_ERROR(pair_.pipe().send(kCheckPieces, seeds_.last()));
  PEERLANE_ASSIGN(const BenchMessage answer, receiveKind(pair_.pipe(), kWrongIs));
  PEERLANE_ASSIGN(const uint64_t wrong, answer.as<uint64_t>());
  wrong_ += wrong;
  return Status::ok();
}

Status SetupCycles::endOther() {
  PEERLANE_RETURN_IF_ERROR(pair_.pipe().send(kEndPieces, {}));
  PEERLANE_ASSIGN(const BenchMessage answer, receiveKind(pair_.pipe(), kTookIs));
  PEERLANE_ASSIGN(const double microseconds, answer.as<double>());
  samples_[kUnregisterImported].add(microseconds);
  remotes_.clear();
  return Status::ok();
}

Status SetupCycles::cycle() {
  Context& context = endpoint_.context();
  PEERLANE_RETURN_IF_ERROR(pair_.pipe().send(kSetUpPieces, SetupRequest{pieces_->count()}));
  PEERLANE_RETURN_IF_ERROR(receiveKind(pair_.pipe(), kReady).status());
  PEERLANE_RETURN_IF_ERROR(timed(kRegister, [&] { return pieces_->registerIn(context); }));
  PEERLANE_RETURN_IF_ERROR(timed(kImport, [this] { return importAll(); }));
  PEERLANE_RETURN_IF_ERROR(puts());
  PEERLANE_RETURN_IF_ERROR(endOther());
  return timed(kUnregister, [&] { return pieces_->unregisterEach(context); });
}

BenchRow rowOf(const BenchPair& pair, const BenchOptions& options, const SetupCycles& cycles,
               Step step, uint64_t count) {
  BenchRow row = rowFor(pair, options, count * RegionPieces::kBytes);
  row.operation = kNames[step].row;
  row.blocks = count;
  row.isLatency = true;
  row.movesAll = step == kFirstPut || step == kPutApart || step == kPutInOne;
  row.outcome.ours = cycles.samples(step);
  if (row.movesAll) row.outcome.wrong = cycles.wrong();
  if (step == kPutApart)
    row.extras["times_of_one_registration"] = row.p50() / cycles.samples(kPutInOne).median();
  else
    row.extras["us_each"] = row.p50() / static_cast<double>(count);
  return row;
}

}  // namespace

uint64_t setupRegionBytes(const BenchOptions& options) {
  return countsOf(options).back() * RegionPieces::kStride;
}

Status benchSetup(BenchPair& pair, const BenchOptions& options, BenchReport& report) {
  PEERLANE_ASSIGN(const auto crowd, CrowdedProcess::create());
  std::array<std::vector<BenchRow>, kSteps> rows;
  for (const uint64_t count : countsOf(options)) {
    PEERLANE_ASSIGN(auto pieces, RegionPieces::create(count));
    SetupCycles cycles(pair, std::move(pieces));
    PEERLANE_RETURN_IF_ERROR(cycles.run(cyclesOf(options, count)));
    for (size_t step = 0; step < kSteps; ++step)
      rows[step].push_back(rowOf(pair, options, cycles, static_cast<Step>(step), count));
  }
  for (size_t step = 0; step < kSteps; ++step) {
    report.printHeader("# peerlane bench setup: " + std::string(kNames[step].title) +
                           "; private memory, link " + pair.link() + ", engine " + pair.engine() +
                           "; " + std::to_string(CrowdedProcess::kMappings) + " mappings and " +
                           std::to_string(CrowdedProcess::kDescriptors) + " descriptors more",
                       /*isLatency=*/true);
    for (BenchRow& row : rows[step]) report.add(std::move(row));
  }
  return Status::ok();
}

Status SetupPartner::registerPieces(BenchPipe& pipe, const SetupRequest& request) {
  if (!crowd_) {
    PEERLANE_ASSIGN(crowd_, CrowdedProcess::create());
  }
  if (!pieces_ || pieces_->count() != request.count) {
    PEERLANE_ASSIGN(pieces_, RegionPieces::create(request.count));
  }
  PEERLANE_RETURN_IF_ERROR(pieces_->registerIn(endpoint_.context()));
  return pipe.send(kReady, {});
}

Status SetupPartner::share(BenchPipe& pipe) const {
  std::vector<std::byte> all;
  for (const Region& region : pieces_->regions()) {
    const auto reference = region.share();
    all.insert(all.end(), reference.begin(), reference.end());
  }
  return pipe.send(kReferencesAre, all);
}

Status SetupPartner::check(BenchPipe& pipe, uint64_t seed) const {
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < pieces_->count(); ++i) {
    const uint64_t at = i * RegionPieces::kStride;
    wrong += countWrong({pieces_->data() + at, RegionPieces::kBytes}, seed, at);
  }
  return pipe.send(kWrongIs, wrong);
}

Status SetupPartner::unregister(BenchPipe& pipe) {
  const Clock::time_point start = Clock::now();
  PEERLANE_RETURN_IF_ERROR(pieces_->unregisterAll(endpoint_.context()));
  return pipe.send(kTookIs, microsecondsSince(start));
}

}  // namespace peerlane::bench
