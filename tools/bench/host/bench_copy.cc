// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/host/bench_copy.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "tools/bench/sides/bench_row.h"
#include "tools/ceiling/ceiling_copy.h"
#include "tools/ceiling/ceiling_socket.h"
#include "tools/ceiling/raw_team.h"
#include "tools/memory/byte_pattern.h"

namespace peerlane::bench {
namespace {

constexpr auto kCopyPatience = std::chrono::seconds(120);
constexpr uint64_t kSlotAlignment = 64;
// A sample of small transfers is many of them, each at its own place, so that one look at the clock
// does not weigh: up to this many, and no more bytes than this.
constexpr uint64_t kMaxSlots = 64;
constexpr uint64_t kSlotsBytes = 256 << 10;
// Too small for the library to find out by them which instruction copies the fastest.
constexpr uint64_t kTouchBytes = 512 << 10;

struct Layout {
  uint64_t bytes = 0;   // of one piece
  uint64_t stride = 0;  // between places
  uint64_t pieces = 1;
  bool oneCall = false;  // all pieces in one transfer; else each is a transfer of its own
  uint64_t span() const { return stride * pieces; }
};

Layout layoutOf(const BenchOptions& options, uint64_t bytes) {
  if (options.isScattered())
    return {options.blockBytes, (options.blockBytes + 7) / 8 * 8, options.blocks, true};
  const uint64_t stride = (bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
  return {bytes, stride, std::clamp<uint64_t>(kSlotsBytes / stride, 1, kMaxSlots), false};
}

// One row: a size, or a list.
class CopyRow {
 public:
  CopyRow(BenchPair& pair, const BenchOptions& options, uint64_t bytes)
      : pair_(pair),
        options_(options),
        isPut_(options.operation == "put"),
        layout_(layoutOf(options, bytes)) {}

  Status begin();
  Result<Outcome> run();
  const std::string& ceilingBy() const { return ceilingBy_; }

 private:
  Status touch();
  Status prepare(Contender who, bool checked);
  Status sample(Contender who, Samples& samples);
  Result<uint64_t> check(Contender who);
  void place();
  Status postOurs();
  Status postOne(std::span<const Block> blocks);
  Status copyRaw();
  Status beginCeiling();
  Status chooseWay(bool isMapped, bool throughKernel);
  bool ceilingIsVerifiable() const { return raw_ != Raw::kStandIn && raw_ != Raw::kStream; }
  OtherRegion const& other() {
    return isPut_ ? pair_.endpoint().otherDestination() : pair_.endpoint().otherSource();
  }
  const Region& local() {
    return isPut_ ? pair_.endpoint().source() : pair_.endpoint().destination();
  }

  // The way in which the raw limit is measured. kStandIn: a copy into shared memory that stands for
  // the destination; the ring engine can be no faster. kStream: a list as one run of bytes.
  enum class Raw { kCopy, kStandIn, kSocket, kStream };

  BenchPair& pair_;
  const BenchOptions& options_;
  const bool isPut_;
  const Layout layout_;
  Seeds seeds_;
  std::mt19937_64 random_{20240607};
  std::vector<uint32_t> localPlace_;  // piece i lies at place localPlace_[i] here
  std::vector<uint32_t> otherPlace_;
  std::vector<Block> blocks_;
  std::vector<RawPiece> rawPieces_;
  Plan plan_;  // indexed lists only
  Raw raw_ = Raw::kCopy;
  CopyWay way_ = CopyWay::kMemcpy;
  std::string ceilingBy_;
  Descriptor standInFile_;
  std::unique_ptr<RawMapping> standIn_;
  std::unique_ptr<RawSocket> socket_;
  std::unique_ptr<RawTeam> team_;  // with --copy-threads
};

Status CopyRow::begin() {
  localPlace_.resize(layout_.pieces);
  std::iota(localPlace_.begin(), localPlace_.end(), 0u);
  otherPlace_ = localPlace_;
  if (options_.indexed) {
    const IndexedBlocks blocks{.local = &local(),
                               .localStride = layout_.stride,
                               .localCount = layout_.pieces,
                               .remote = &other().remote,
                               .remoteStride = layout_.stride,
                               .remoteCount = layout_.pieces,
                               .blockBytes = layout_.bytes,
                               .maxBlocksPerPost = layout_.pieces};
    PlanOptions planOptions;
    if (isPut_) planOptions.signal = 0;
    PEERLANE_ASSIGN(
        plan_, Plan::create(pair_.endpoint().peer(), isPut_ ? Direction::kPut : Direction::kGet,
                            blocks, planOptions));
  }
  PEERLANE_RETURN_IF_ERROR(touch());
  return options_.ceiling ? beginCeiling() : Status::ok();
}

// No sample shall be the first to touch its memory: that takes longer than the copy, and warm-up
// rounds, which touch it as well, may be left out (-w 0) to see the first copies of a process.
Status CopyRow::touch() {
  for (uint64_t at = 0; at < layout_.span(); at += kTouchBytes) {
    const Block block{&local(), at, &other().remote, at,
                      std::min(kTouchBytes, layout_.span() - at)};
    PEERLANE_RETURN_IF_ERROR(postOne({&block, 1}));
    if (isPut_) ++pair_.endpoint().signalsSent;
  }
  return Status::ok();
}

Status CopyRow::beginCeiling() {
  const std::string engine = other().remote.engine();
  if (engine == "mapped" && other().mapping) {
    raw_ = Raw::kCopy;
    return chooseWay(true, true);
  }
  if (engine == "cma") {
    raw_ = Raw::kCopy;
    return chooseWay(false, true);
  }
  if (engine == "ring" || engine == "mapped") {
    raw_ = Raw::kStandIn;
    PEERLANE_ASSIGN(standInFile_, makeSharedFile("bench-stand-in", layout_.span()));
    PEERLANE_ASSIGN(standIn_, RawMapping::create(standInFile_.get(), 0, layout_.span()));
    return chooseWay(true, false);
  }
  raw_ = layout_.oneCall ? Raw::kStream : Raw::kSocket;
  ceilingBy_ = "loopback socket";
  PEERLANE_RETURN_IF_ERROR(pair_.pipe().send(kListen, {}));
  PEERLANE_ASSIGN(const BenchMessage answer, receiveKind(pair_.pipe(), kPortIs));
  PEERLANE_ASSIGN(const uint16_t port, answer.as<uint16_t>());
  PEERLANE_ASSIGN(socket_, RawSocket::connect(port));
  return receiveKind(pair_.pipe(), kReady).status();
}

Status CopyRow::chooseWay(bool isMapped, bool throughKernel) {
  const auto trial = [this](CopyWay way) -> Result<double> {
    way_ = way;
    PEERLANE_RETURN_IF_ERROR(prepare(Contender::kCeiling, false));
    Samples samples;
    PEERLANE_RETURN_IF_ERROR(sample(Contender::kCeiling, samples));
    return samples.median();
  };
  if (options_.copyThreads != 0)
    team_ = std::make_unique<RawTeam>(static_cast<uint32_t>(options_.copyThreads));
  PEERLANE_ASSIGN(way_, fastestWay(copyWays(isMapped, throughKernel), trial));
  ceilingBy_ = nameOf(way_, isPut_);
  if (team_) ceilingBy_ += ", " + std::to_string(options_.copyThreads + 1) + " threads";
  return Status::ok();
}

// Where every piece lies this time: lists get new places, so that nobody can learn them.
void CopyRow::place() {
  if (layout_.oneCall) {
    std::shuffle(localPlace_.begin(), localPlace_.end(), random_);
    std::shuffle(otherPlace_.begin(), otherPlace_.end(), random_);
  } else if (!blocks_.empty()) {
    return;
  }
  const RawMapping* const seen = raw_ == Raw::kStandIn ? standIn_.get() : other().mapping.get();
  blocks_.clear();
  rawPieces_.clear();
  for (uint64_t i = 0; i < layout_.pieces; ++i) {
    const uint64_t here = localPlace_[i] * layout_.stride;
    const uint64_t there = otherPlace_[i] * layout_.stride;
    blocks_.push_back({&local(), here, &other().remote, there, layout_.bytes});
    rawPieces_.push_back({local().data() + here, seen ? seen->data() + there : nullptr,
                          other().address + there, layout_.bytes});
  }
}

Status CopyRow::prepare(Contender who, bool checked) {
  place();
  const uint64_t seed = seeds_.next();
  std::byte* const mine = local().data();
  if (isPut_) {
    fillPattern({mine, layout_.span()}, seed);
    if (checked) PEERLANE_RETURN_IF_ERROR(pair_.fillOther(false, layout_.span(), otherThan(seed)));
  } else {
    if (checked) fillPattern({mine, layout_.span()}, otherThan(seed));
    PEERLANE_RETURN_IF_ERROR(pair_.fillOther(true, layout_.span(), seed));
  }
  if (who != Contender::kCeiling || socket_ == nullptr) return Status::ok();
  const bool stream = raw_ == Raw::kStream;
  const SocketRequest request{.isPut = isPut_,
                              .bytes = stream ? layout_.bytes * layout_.pieces : layout_.bytes,
                              .stride = layout_.stride,
                              .count = stream ? 1 : layout_.pieces};
  PEERLANE_RETURN_IF_ERROR(pair_.pipe().send(kServeSocket, request));
  return socket_->greet(true);
}

Status CopyRow::postOne(std::span<const Block> blocks) {
  const Peer& peer = pair_.endpoint().peer();
  PostOptions options;
  if (isPut_) options.notify.signal = 0;
  auto posted = isPut_ ? put(peer, blocks, options) : get(peer, blocks, options);
  if (!posted) return posted.status();
  return posted->wait(kCopyPatience);
}

Status CopyRow::postOurs() {
  if (options_.indexed) {
    auto posted = plan_.post(localPlace_, otherPlace_);
    if (!posted) return posted.status();
    return posted->wait(kCopyPatience);
  }
  if (layout_.oneCall) return postOne(blocks_);
  for (const Block& block : blocks_) PEERLANE_RETURN_IF_ERROR(postOne({&block, 1}));
  return Status::ok();
}

Status CopyRow::copyRaw() {
  if (raw_ == Raw::kStream)
    return isPut_ ? socket_->put(local().data(), layout_.bytes * layout_.pieces)
                  : socket_->get(local().data(), layout_.bytes * layout_.pieces);
  std::atomic<uint64_t>& flag = pair_.endpoint().flags().toChild;
  const size_t atOnce = layout_.oneCall ? rawPieces_.size() : 1;
  for (size_t i = 0; i < rawPieces_.size(); i += atOnce) {
    const std::span pieces = std::span(rawPieces_).subspan(i, atOnce);
    if (raw_ == Raw::kSocket) {
      PEERLANE_RETURN_IF_ERROR(isPut_ ? socket_->put(pieces[0].local, pieces[0].bytes)
                                      : socket_->get(pieces[0].local, pieces[0].bytes));
      continue;
    }
    PEERLANE_RETURN_IF_ERROR(team_ ? team_->copy(way_, pair_.child(), pieces, isPut_)
                                   : copyPieces(way_, pair_.child(), pieces, isPut_));
    // Completion is told to the receiver, here as there.
    if (isPut_) flag.store(flag.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }
  return Status::ok();
}

Status CopyRow::sample(Contender who, Samples& samples) {
  const Clock::time_point start = Clock::now();
  PEERLANE_RETURN_IF_ERROR(who == Contender::kOurs ? postOurs() : copyRaw());
  const double elapsed = microsecondsSince(start);
  const uint64_t transfers = layout_.oneCall ? 1 : layout_.pieces;
  samples.add(elapsed / static_cast<double>(transfers));
  if (who == Contender::kOurs && isPut_) pair_.endpoint().signalsSent += transfers;
  if (who == Contender::kCeiling && socket_ != nullptr)
    return receiveKind(pair_.pipe(), kReady).status();
  return Status::ok();
}

Result<uint64_t> CopyRow::check(Contender who) {
  if (who == Contender::kCeiling && !ceilingIsVerifiable()) return uint64_t{0};
  if (isPut_) {
    std::vector<VerifyPiece> pieces;
    for (const Block& block : blocks_)
      pieces.push_back({block.remoteOffset, block.localOffset, block.bytes});
    return pair_.verifyOther(
        {seeds_.last(), who == Contender::kOurs ? pair_.endpoint().signalsSent : 0}, pieces);
  }
  uint64_t wrong = 0;
  for (const Block& block : blocks_)
    wrong += countWrong({local().data() + block.localOffset, block.bytes}, seeds_.last(),
                        block.remoteOffset);
  return wrong;
}

Result<Outcome> CopyRow::run() {
  Contest contest = contestFor(options_, layout_.bytes * layout_.pieces);
  contest.prepare = [this](Contender who, bool checked) { return prepare(who, checked); };
  contest.sample = [this](Contender who, Samples& samples) { return sample(who, samples); };
  contest.check = [this](Contender who) { return check(who); };
  return runContest(contest);
}

}  // namespace

uint64_t copyRegionBytes(const BenchOptions& options) {
  uint64_t most = 0;
  for (const uint64_t bytes : sweep(options))
    most = std::max(most, layoutOf(options, bytes).span());
  return most;
}

Status benchCopy(BenchPair& pair, const BenchOptions& options, BenchReport& report) {
  for (const uint64_t bytes : sweep(options)) {
    CopyRow row(pair, options, bytes);
    PEERLANE_RETURN_IF_ERROR(row.begin());
    PEERLANE_ASSIGN(Outcome outcome, row.run());
    BenchRow line = rowFor(pair, options, bytes);
    line.ceilingBy = row.ceilingBy();
    line.outcome = std::move(outcome);
    if (options.indexed) line.extras["indexed"] = 1;
    // Without warm-up the mean tells how fast the first ones were.
    if (options.warmup == 0 && line.ceiling())
      line.extras["mean_ratio"] = line.outcome.ceiling.median() / line.outcome.ours.mean();
    report.add(std::move(line));
  }
  return Status::ok();
}

}  // namespace peerlane::bench
