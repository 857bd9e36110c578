// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/gpu/bench_gpu_pingpong.h"

namespace peerlane::bench {
namespace {

constexpr uint32_t kSignal = 1;
constexpr uint64_t kRounds = 20;
constexpr uint64_t kWarmup = 5;
constexpr uint64_t kSamples = 31;

// One side of a game: the bytes go from `from` to the peer's destination.
class StreamGame {
 public:
  static Result<StreamGame> create(GpuSide& side, const Region& from, uint64_t bytes) {
    PEERLANE_ASSIGN(const Signal signal, Signal::create(side.peer(), kSignal));
    return StreamGame(side, from, bytes, signal);
  }

  Status throwIt() {
    const Block block{&from_, 0, &side_.otherDestination().remote, 0, bytes_};
    PostOptions options;
    options.notify.signal = kSignal;
    options.deviceStream = side_.deviceStream();
    return keep(put(side_.peer(), {&block, 1}, options));
  }
  Status catchIt() { return keep(signal_.waitOn(side_.deviceStream(), ++received_, kGpuPatience)); }
  Status wait() {
    Status ended = waitForAll(transfers_);
    transfers_.clear();
    return ended;
  }

 private:
  StreamGame(GpuSide& side, const Region& from, uint64_t bytes, const Signal& signal)
      : side_(side), from_(from), bytes_(bytes), signal_(signal), received_(signal.value()) {}
  Status keep(Result<Transfer> posted) {
    if (!posted.isOk()) return posted.status();
    transfers_.push_back(std::move(posted).value());
    return Status::ok();
  }

  GpuSide& side_;
  const Region& from_;
  uint64_t bytes_;
  Signal signal_;
  uint64_t received_;
  std::vector<Transfer> transfers_;
};

Status playOurs(GpuPair& pair, const GpuPingpong& request, GpuPingpongTimes& times) {
  GpuSide& side = pair.side();
  PEERLANE_ASSIGN(StreamGame game, StreamGame::create(side, side.source(), request.bytes));
  const uint64_t seed = pair.nextSeed();
  PEERLANE_RETURN_IF_ERROR(side.fill(true, request.bytes, seed));
  PEERLANE_RETURN_IF_ERROR(side.poison(request.bytes));
  PEERLANE_RETURN_IF_ERROR(pair.poisonOther(request.bytes));
  PEERLANE_RETURN_IF_ERROR(pair.pipe().send(kGpuPingpong, request));
  PEERLANE_RETURN_IF_ERROR(pair.pipe().receive(kReady).status());
  for (uint64_t sample = 0; sample < request.warmup + request.samples; ++sample) {
    const double start = gpuBenchNow();
    for (uint64_t i = 0; i < request.rounds; ++i) {
      PEERLANE_RETURN_IF_ERROR(game.throwIt());
      PEERLANE_RETURN_IF_ERROR(game.catchIt());
    }
    PEERLANE_RETURN_IF_ERROR(game.wait());
    if (sample >= request.warmup)
      times.ours.add((gpuBenchNow() - start) / static_cast<double>(request.rounds));
  }
  PEERLANE_RETURN_IF_ERROR(pair.pipe().receive(kReady).status());
  const GpuSpan all{0, 0, request.bytes};
  PEERLANE_ASSIGN(const uint64_t wrong, side.countWrong(seed, {&all, 1}));
  times.wrong += wrong;
  return Status::ok();
}

GpuRepeats repeatsOf(const GpuPingpong& request) {
  return {request.warmup * request.rounds, request.samples, request.rounds};
}

GpuGame gameOf(GpuSide& side) {
  return {side.gameHere(), side.gameThere(), 0};
}

Status playRaw(GpuPair& pair, const GpuPingpong& request, GpuPingpongTimes& times) {
  GpuSide& side = pair.side();
  PEERLANE_RETURN_IF_ERROR(
      setGpuBytes(side.stream(), side.gameHere(), 0, GpuGame::kWords * sizeof(uint64_t)));
  PEERLANE_RETURN_IF_ERROR(pair.pipe().send(kGpuPingpong, request));
  PEERLANE_RETURN_IF_ERROR(pair.pipe().receive(kReady).status());
  PEERLANE_RETURN_IF_ERROR(
      gpuServe(side.stream().handle(), gameOf(side), repeatsOf(request), times.ceiling));
  return pair.pipe().receive(kReady).status();
}

}  // namespace

Result<GpuPingpongTimes> measureGpuPingpong(GpuPair& pair, uint64_t bytes, bool withOurs,
                                            bool withCeiling) {
  GpuPingpongTimes times;
  GpuPingpong request{.bytes = bytes, .rounds = kRounds, .warmup = kWarmup, .samples = kSamples};
  // The naive kernels carry 8 bytes.
  if (withCeiling && bytes <= 8) PEERLANE_RETURN_IF_ERROR(playRaw(pair, request, times));
  request.ours = true;
  if (withOurs) PEERLANE_RETURN_IF_ERROR(playOurs(pair, request, times));
  return times;
}

Status serveGpuPingpong(GpuSide& side, GpuPipe& pipe, const GpuPingpong& request) {
  if (!request.ours) {
    PEERLANE_RETURN_IF_ERROR(
        setGpuBytes(side.stream(), side.gameHere(), 0, GpuGame::kWords * sizeof(uint64_t)));
    PEERLANE_RETURN_IF_ERROR(pipe.send(kReady));
    PEERLANE_RETURN_IF_ERROR(gpuReturn(side.stream().handle(), gameOf(side), repeatsOf(request)));
    return pipe.send(kReady);
  }
  // The bytes that came go back.
  PEERLANE_ASSIGN(StreamGame game, StreamGame::create(side, side.destination(), request.bytes));
  PEERLANE_RETURN_IF_ERROR(pipe.send(kReady));
  for (uint64_t sample = 0; sample < request.warmup + request.samples; ++sample) {
    for (uint64_t i = 0; i < request.rounds; ++i) {
      PEERLANE_RETURN_IF_ERROR(game.catchIt());
      PEERLANE_RETURN_IF_ERROR(game.throwIt());
    }
    PEERLANE_RETURN_IF_ERROR(game.wait());
  }
  return pipe.send(kReady);
}

}  // namespace peerlane::bench
