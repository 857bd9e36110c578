// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/host/bench_pingpong.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "tools/bench/sides/bench_row.h"
#include "tools/ceiling/ceiling_pingpong.h"
#include "tools/memory/byte_pattern.h"

namespace peerlane::bench {
namespace {

constexpr uint32_t kSignalNumber = 1;
constexpr uint64_t kPerSample = 16;  // round trips between two looks at the clock
constexpr uint64_t kWarmupRounds = 64;
constexpr uint64_t kSamplesPerTurn = 64;
constexpr uint64_t kVerifiedRounds = 16;
constexpr auto kPingpongPatience = std::chrono::seconds(20);

Result<Plan> makePlan(BenchEndpoint& endpoint, uint64_t bytes) {
  const Block block{&endpoint.source(), 0, &endpoint.otherDestination().remote, 0, bytes};
  PlanOptions options;
  options.signal = kSignalNumber;
  return Plan::create(endpoint.peer(), Direction::kPut, {&block, 1}, options);
}

// One side of the game.
class Player {
 public:
  Player(BenchEndpoint& endpoint, Plan& plan, Signal signal, const PingpongRequest& request)
      : endpoint_(endpoint),
        plan_(plan),
        signal_(std::move(signal)),
        request_(request),
        base_(signal_.value()),
        source_(endpoint.source().data()) {}

  Status hit(uint64_t round) {
    if (request_.verify)
      fillPattern({source_, request_.bytes}, seedOf(round));
    else
      std::memcpy(source_, &round, std::min<uint64_t>(sizeof(round), request_.bytes));
    const auto posted = plan_.post();
    if (posted.isOk()) return Status::ok();
    if (posted.status().code() != Code::kTryAgain) return posted.status();
    return hitAgain();
  }
  Status await(uint64_t round) {
    if (!request_.poll) return signal_.wait(base_ + round, kPingpongPatience);
    SpinLimit limit;
    while (signal_.value() < base_ + round)
      if (limit.over()) return spinOver();
    return Status::ok();
  }
  // Checks the bytes that arrived; then another pattern takes their place.
  void look(uint64_t round) {
    std::byte* const destination = endpoint_.destination().data();
    wrong_ += countWrong({destination, request_.bytes}, seedOf(round));
    fillPattern({destination, request_.bytes}, otherThan(seedOf(round + 1)));
  }
  void spoil() {
    fillPattern({endpoint_.destination().data(), request_.bytes}, otherThan(seedOf(1)));
  }
  uint64_t wrong() const { return wrong_; }

 private:
  uint64_t seedOf(uint64_t round) const { return request_.seed + round; }
  // The answer came back before the confirmation of the put that it answers.
  Status hitAgain() {
    for (SpinLimit limit;;) {
      const auto posted = plan_.post();
      if (posted.isOk()) return Status::ok();
      if (posted.status().code() != Code::kTryAgain) return posted.status();
      if (limit.over()) return spinOver();
    }
  }

  BenchEndpoint& endpoint_;
  Plan& plan_;
  const Signal signal_;
  const PingpongRequest request_;
  const uint64_t base_;
  std::byte* const source_;
  uint64_t wrong_ = 0;
};

Status playRound(Player& player, uint64_t round) {
  PEERLANE_RETURN_IF_ERROR(player.hit(round));
  return player.await(round);
}

// Asks the child into a game, lets `play` play it, and takes the child's verdict.
template <typename Play>
Status game(BenchPair& pair, uint32_t kind, const PingpongRequest& request, uint64_t& wrong,
            Play play) {
  PEERLANE_RETURN_IF_ERROR(pair.pipe().send(kind, request));
  PEERLANE_RETURN_IF_ERROR(receiveKind(pair.pipe(), kReady).status());
  PEERLANE_RETURN_IF_ERROR(play());
  PEERLANE_ASSIGN(const BenchMessage verdict, receiveKind(pair.pipe(), kWrongIs));
  PEERLANE_ASSIGN(const uint64_t theirs, verdict.as<uint64_t>());
  wrong += theirs;
  return Status::ok();
}

RawGame rawGame(BenchEndpoint& endpoint, bool isParent, pid_t other,
                const PingpongRequest& request) {
  const OtherRegion& to = endpoint.otherDestination();
  RawFlags& flags = endpoint.flags();
  RawGame raw;
  raw.out = {{endpoint.source().data(), to.mapping ? to.mapping->data() : nullptr, to.address,
              request.bytes}};
  raw.way = request.way;
  raw.other = other;
  raw.mine = isParent ? &flags.toParent : &flags.toChild;
  raw.theirs = isParent ? &flags.toChild : &flags.toParent;
  raw.base = raw.mine->load(std::memory_order_acquire);
  return raw;
}

struct Row {
  BenchPair& pair;
  uint64_t bytes;
  uint64_t samplesPerTurn;
  Plan plan;
  Signal signal;
  bool poll = false;
  CopyWay way = CopyWay::kMemcpy;
  Seeds seeds;

  PingpongRequest request(uint64_t rounds, bool verify) {
    return {.bytes = bytes,
            .rounds = rounds,
            .seed = seeds.next() << 20,
            .verify = verify,
            .poll = poll,
            .way = way};
  }

  Status ours(Samples& samples) {
    uint64_t wrong = 0;
    const PingpongRequest ask = request(kWarmupRounds + samplesPerTurn * kPerSample, false);
    return game(pair, kPingpong, ask, wrong, [&]() -> Status {
      Player player(pair.endpoint(), plan, signal, ask);
      uint64_t round = 0;
      for (; round < kWarmupRounds;) PEERLANE_RETURN_IF_ERROR(playRound(player, ++round));
      for (uint64_t i = 0; i < samplesPerTurn; ++i) {
        const Clock::time_point start = Clock::now();
        for (uint64_t k = 0; k < kPerSample; ++k)
          PEERLANE_RETURN_IF_ERROR(playRound(player, ++round));
        samples.add(microsecondsSince(start) / 2 / kPerSample);
      }
      return Status::ok();
    });
  }

  Status raw(Samples& samples) {
    uint64_t wrong = 0;
    const PingpongRequest ask = request(kWarmupRounds + samplesPerTurn * kPerSample, false);
    return game(pair, kRawPingpong, ask, wrong, [&]() -> Status {
      return rawServe(rawGame(pair.endpoint(), true, pair.child(), ask), kWarmupRounds,
                      samplesPerTurn, kPerSample, samples);
    });
  }

  // Played, not copied in one process: where the bytes lie at their end is part of the time.
  Result<std::string> chooseWay() {
    const auto trial = [this](CopyWay tried) -> Result<double> {
      way = tried;
      Samples samples;
      PEERLANE_RETURN_IF_ERROR(raw(samples));
      return samples.median();
    };
    const bool isMapped = pair.endpoint().otherDestination().mapping != nullptr;
    PEERLANE_ASSIGN(way, fastestWay(copyWays(isMapped, true), trial));
    return nameOf(way, true);
  }

  Result<uint64_t> verified() {
    uint64_t wrong = 0;
    const PingpongRequest ask = request(kVerifiedRounds, true);
    const Status played = game(pair, kPingpong, ask, wrong, [&]() -> Status {
      Player player(pair.endpoint(), plan, signal, ask);
      player.spoil();
      for (uint64_t round = 1; round <= kVerifiedRounds; ++round) {
        PEERLANE_RETURN_IF_ERROR(playRound(player, round));
        player.look(round);
      }
      wrong += player.wrong();
      return Status::ok();
    });
    if (!played.isOk()) return played;
    return wrong;
  }
};

}  // namespace

Status PingpongPartner::serve(BenchPipe& pipe, const PingpongRequest& request) {
  if (planBytes_ != request.bytes) {
    PEERLANE_ASSIGN(plan_, makePlan(endpoint_, request.bytes));
    planBytes_ = request.bytes;
  }
  PEERLANE_ASSIGN(Signal signal, Signal::create(endpoint_.peer(), kSignalNumber));
  Player player(endpoint_, plan_, std::move(signal), request);
  if (request.verify) player.spoil();
  PEERLANE_RETURN_IF_ERROR(pipe.send(kReady, {}));
  for (uint64_t round = 1; round <= request.rounds; ++round) {
    PEERLANE_RETURN_IF_ERROR(player.await(round));
    if (request.verify) player.look(round);
    PEERLANE_RETURN_IF_ERROR(player.hit(round));
  }
  return pipe.send(kWrongIs, player.wrong());
}

Status PingpongPartner::serveRaw(BenchPipe& pipe, const PingpongRequest& request) {
  const RawGame raw = rawGame(endpoint_, false, ::getppid(), request);
  PEERLANE_RETURN_IF_ERROR(pipe.send(kReady, {}));
  PEERLANE_RETURN_IF_ERROR(rawReturn(raw, request.rounds));
  return pipe.send(kWrongIs, uint64_t{0});
}

Status benchPingpong(BenchPair& pair, const BenchOptions& options, BenchReport& report) {
  const std::string engine = pair.engine();
  // Over a socket there is no raw flag to wait for.
  const bool withCeiling = options.ceiling && (engine == "mapped" || engine == "cma");
  for (const uint64_t bytes : sweep(options)) {
    PEERLANE_ASSIGN(Plan plan, makePlan(pair.endpoint(), bytes));
    PEERLANE_ASSIGN(Signal signal, Signal::create(pair.endpoint().peer(), kSignalNumber));
    Contest contest = contestFor(options, bytes * 1024);
    const uint64_t perTurn = std::min(contest.rounds, kSamplesPerTurn);
    Row row{pair,
            bytes,
            perTurn,
            std::move(plan),
            std::move(signal),
            options.pollSignals,
            CopyWay::kMemcpy,
            {}};
    contest.sample = [&row](Contender who, Samples& out) {
      return who == Contender::kOurs ? row.ours(out) : row.raw(out);
    };
    // A verified game of its own: looking at bytes between rounds would be seen in the times.
    contest.check = [&row](Contender who) -> Result<uint64_t> {
      if (who == Contender::kCeiling) return uint64_t{0};
      return row.verified();
    };
    contest.withCeiling = withCeiling;
    contest.warmup = std::min<uint64_t>(options.warmup, 1);
    contest.rounds = (contest.rounds + perTurn - 1) / perTurn;
    std::string ceilingBy;
    if (withCeiling) {
      PEERLANE_ASSIGN(ceilingBy, row.chooseWay());
      ceilingBy += " + flag";
    }
    PEERLANE_ASSIGN(Outcome outcome, runContest(contest));
    BenchRow line = rowFor(pair, options, bytes);
    line.isLatency = true;
    line.ceilingBy = ceilingBy;
    line.outcome = std::move(outcome);
    report.add(std::move(line));
  }
  return Status::ok();
}

}  // namespace peerlane::bench
