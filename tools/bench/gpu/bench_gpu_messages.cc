// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/gpu/bench_gpu_messages.h"

#include <memory>

namespace peerlane::bench {
namespace {

constexpr uint64_t kSmall = 64 << 10;  // up to here a sample has many rounds

// One side of a game by this library. It returns the bytes that came.
class MessageGame {
 public:
  static Result<std::unique_ptr<MessageGame>> create(GpuSide& side, const GpuPingpong& request) {
    std::unique_ptr<MessageGame> game(new MessageGame(side, request));
    std::vector<Peer> peers(2);
    peers[game->other_] = side.peer();
    CommunicatorOptions options;
    options.timeout = kGpuPatience;
    options.protocol = request.protocol;
    PEERLANE_ASSIGN(game->ranks_,
                    Communicator::create(side.context(), peers, 1 - game->other_, options));
    if (request.perGraph == 0) return game;
    const Region used[] = {side.source(), side.destination()};
    PEERLANE_RETURN_IF_ERROR(game->ranks_->prepare(game->other_, used, kGpuPatience));
    PEERLANE_ASSIGN(game->graph_, GpuGraph::capture(side.stream(), [&game, &request] {
                      return game->rounds(request.perGraph);
                    }));
    return game;
  }

  Status play(uint64_t count) {
    if (graph_ == nullptr) {
      PEERLANE_RETURN_IF_ERROR(rounds(count));
      return last_.wait(kGpuPatience);
    }
    for (uint64_t i = 0; i < count; i += request_.perGraph)
      PEERLANE_RETURN_IF_ERROR(graph_->launch(side_.stream()));
    return side_.stream().wait();
  }

 private:
  MessageGame(GpuSide& side, const GpuPingpong& request)
      : side_(side), request_(request), other_(side.setup().isParent ? 1 : 0) {
    on_.deviceStream = side.deviceStream();
  }
  Status keep(Result<Transfer> posted) {
    if (!posted.isOk()) return posted.status();
    last_ = std::move(posted).value();
    return Status::ok();
  }
  Status send(const Region& from) {
    return keep(ranks_->send(other_, from, 0, request_.bytes, on_));
  }
  Status receive() {
    return keep(ranks_->recv(other_, side_.destination(), 0, request_.bytes, on_));
  }
  Status rounds(uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
      if (side_.setup().isParent) PEERLANE_RETURN_IF_ERROR(send(side_.source()));
      PEERLANE_RETURN_IF_ERROR(receive());
      if (!side_.setup().isParent) PEERLANE_RETURN_IF_ERROR(send(side_.destination()));
    }
    return Status::ok();
  }

  GpuSide& side_;
  const GpuPingpong request_;
  const Rank other_;
  MessageOptions on_;
  std::unique_ptr<Communicator> ranks_;
  Transfer last_;
  std::unique_ptr<GpuGraph> graph_;  // goes before the communicator
};

GpuGame rawGameOf(GpuSide& side, const GpuPingpong& request) {
  GpuGame game{side.gameHere(), side.gameThere(), request.perGraph, {}};
  if (request.bytes <= sizeof(uint64_t)) return game;
  game.bytes = {.count = request.bytes,
                .from = side.source().data(),
                .into = side.destination().data(),
                .there = side.otherDestination().raw->data(),
                .counter = side.counter()};
  return game;
}

GpuRepeats messageRepeats(const GpuPingpong& request) {
  return {request.warmup * request.rounds, request.samples, request.rounds};
}

Status clearGame(GpuSide& side) {
  return setGpuBytes(side.stream(), side.gameHere(), 0, GpuGame::kWords * sizeof(uint64_t));
}

Status playMessages(GpuPair& pair, const GpuPingpong& request, Samples& roundTrips) {
  PEERLANE_ASSIGN(const auto game, MessageGame::create(pair.side(), request));
  PEERLANE_RETURN_IF_ERROR(pair.pipe().receive(kReady).status());
  for (uint64_t sample = 0; sample < request.warmup + request.samples; ++sample) {
    const double start = gpuBenchNow();
    PEERLANE_RETURN_IF_ERROR(game->play(request.rounds));
    if (sample >= request.warmup)
      roundTrips.add((gpuBenchNow() - start) / static_cast<double>(request.rounds));
  }
  // The game ends when both have played: its end is told to the other side.
  return pair.pipe().receive(kReady).status();
}

Status playRawMessages(GpuPair& pair, const GpuPingpong& request, Samples& roundTrips) {
  GpuSide& side = pair.side();
  PEERLANE_RETURN_IF_ERROR(clearGame(side));
  PEERLANE_RETURN_IF_ERROR(pair.pipe().receive(kReady).status());
  PEERLANE_RETURN_IF_ERROR(gpuServe(side.stream().handle(), rawGameOf(side, request),
                                    messageRepeats(request), roundTrips));
  return pair.pipe().receive(kReady).status();
}

// New bytes, which must be there when they have come back; on their way they replace another
// pattern.
Status play(GpuPair& pair, const GpuPingpong& request, Samples& roundTrips, uint64_t& wrong) {
  GpuSide& side = pair.side();
  const uint64_t seed = pair.nextSeed();
  PEERLANE_RETURN_IF_ERROR(side.fill(true, request.bytes, seed));
  PEERLANE_RETURN_IF_ERROR(side.poison(request.bytes));
  PEERLANE_RETURN_IF_ERROR(pair.poisonOther(request.bytes));
  PEERLANE_RETURN_IF_ERROR(pair.pipe().send(kGpuMessages, request));
  PEERLANE_RETURN_IF_ERROR(request.ours ? playMessages(pair, request, roundTrips)
                                        : playRawMessages(pair, request, roundTrips));
  // The raw game of 8 bytes has a message of its own, and sees to it.
  if (!request.ours && request.bytes <= sizeof(uint64_t)) return Status::ok();
  const GpuSpan all{0, 0, request.bytes};
  PEERLANE_ASSIGN(const uint64_t missed, pair.verifyOther(seed, {&all, 1}));
  PEERLANE_ASSIGN(const uint64_t missedHere, side.countWrong(seed, {&all, 1}));
  wrong += missed + missedHere;
  return Status::ok();
}

}  // namespace

Result<GpuPingpongTimes> measureGpuMessages(GpuPair& pair, uint64_t bytes, bool inGraph,
                                            bool withOurs, uint64_t samples, Protocol protocol) {
  GpuPingpong request{.bytes = bytes,
                      .rounds = bytes <= kSmall ? 10 * kGpuRoundsPerGraph : kGpuRoundsPerGraph,
                      .warmup = 3,
                      .samples = samples > 0 ? samples : 15,
                      .protocol = protocol};
  if (inGraph) request.perGraph = kGpuRoundsPerGraph;
  GpuPingpongTimes times;
  PEERLANE_RETURN_IF_ERROR(play(pair, request, times.ceiling, times.wrong));
  request.ours = true;
  if (withOurs) PEERLANE_RETURN_IF_ERROR(play(pair, request, times.ours, times.wrong));
  return times;
}

Status serveGpuMessages(GpuSide& side, GpuPipe& pipe, const GpuPingpong& request) {
  if (!request.ours) {
    PEERLANE_RETURN_IF_ERROR(clearGame(side));
    PEERLANE_RETURN_IF_ERROR(pipe.send(kReady));
    PEERLANE_RETURN_IF_ERROR(
        gpuReturn(side.stream().handle(), rawGameOf(side, request), messageRepeats(request)));
    return pipe.send(kReady);
  }
  PEERLANE_ASSIGN(const auto game, MessageGame::create(side, request));
  PEERLANE_RETURN_IF_ERROR(pipe.send(kReady));
  for (uint64_t sample = 0; sample < request.warmup + request.samples; ++sample)
    PEERLANE_RETURN_IF_ERROR(game->play(request.rounds));
  return pipe.send(kReady);
}

}  // namespace peerlane::bench
