// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/gpu/bench_gpu_connect.h"

namespace peerlane::bench {
namespace {

constexpr uint64_t kPeersMade = 32;
// Many contexts are made.
constexpr int kExtraFactor = 3;

// Uses both directions of a connection, so that everything made at first use is counted.
Status tell(const Peer& peer, DeviceStream stream) {
  Notify what;
  what.signal = 0;
  PEERLANE_ASSIGN(const Transfer told, notify(peer, what, stream));
  return told.wait(kGpuPatience);
}

Status connectOnce(GpuPair& pair, uint64_t word, bool isTimed, GpuConnectTimes& times) {
  GpuSide& side = pair.side();
  PEERLANE_RETURN_IF_ERROR(copyToGpu(side.stream(), side.source().data(), &word, sizeof(word)));
  const uint64_t number = pair.nextNumber();
  PEERLANE_RETURN_IF_ERROR(pair.pipe().send(kGpuAccept, AcceptRequest{number, word}));
  PEERLANE_RETURN_IF_ERROR(pair.awaitArmed(number));

  const double start = gpuBenchNow();
  PEERLANE_ASSIGN(const Peer peer, side.context().connect(pair.childTicket(), kGpuPatience));
  const double connected = gpuBenchNow();
  PEERLANE_ASSIGN(const RemoteRegion remote, peer.importRegion(side.otherDoorstep()));
  const Block block{&side.source(), 0, &remote, 0, sizeof(word)};
  PostOptions options;
  options.notify.signal = 0;
  options.deviceStream = side.deviceStream();
  PEERLANE_ASSIGN(const Transfer posted, put(peer, {&block, 1}, options));
  PEERLANE_RETURN_IF_ERROR(posted.wait(kGpuPatience));

  PEERLANE_ASSIGN(const BenchMessage answer, pair.pipe().receive(kGpuFirstByteIs, 2));
  PEERLANE_ASSIGN(const GpuFirstByte first, answer.as<GpuFirstByte>());
  times.wrong += first.wrong;
  if (isTimed) {
    times.firstByte.add(first.seenAt - start);
    times.connectOnly.add(connected - start);
  }
  // Outside the clock: every round is a new connection.
  peer.close();
  return Status::ok();
}

}  // namespace

Result<GpuConnectTimes> measureGpuConnect(GpuPair& pair, uint64_t warmup, uint64_t samples) {
  GpuConnectTimes times;
  for (uint64_t i = 0; i < warmup + samples; ++i)
    PEERLANE_RETURN_IF_ERROR(
        connectOnce(pair, 0x1122334455667788ull + pair.nextSeed(), i >= warmup, times));
  return times;
}

Result<double> measureGpuPeerBytes(GpuPair& pair) {
  GpuSide& side = pair.side();
  PEERLANE_RETURN_IF_ERROR(pair.pipe().send(kGpuMakeExtra, kPeersMade));
  PEERLANE_RETURN_IF_ERROR(pair.pipe().receive(kReady, kExtraFactor).status());
  PEERLANE_ASSIGN(const uint64_t before, usedGpuBytes());
  const std::string ticket = side.context().ticket();
  PEERLANE_RETURN_IF_ERROR(
      pair.pipe().plain().send(kGpuConnectExtra, std::as_bytes(std::span(ticket))));
  std::vector<Peer> peers;
  for (uint64_t i = 0; i < kPeersMade; ++i) {
    PEERLANE_ASSIGN(Peer peer, side.context().accept(kGpuPatience));
    PEERLANE_RETURN_IF_ERROR(tell(peer, side.deviceStream()));
    peers.push_back(std::move(peer));
  }
  PEERLANE_RETURN_IF_ERROR(pair.pipe().receive(kReady, kExtraFactor).status());
  PEERLANE_ASSIGN(const uint64_t after, usedGpuBytes());
  for (const Peer& peer : peers) peer.close();
  PEERLANE_RETURN_IF_ERROR(pair.pipe().send(kGpuDropExtra));
  PEERLANE_RETURN_IF_ERROR(pair.pipe().receive(kReady, kExtraFactor).status());
  // On one GPU both ends of each connection are seen.
  const double ends = static_cast<double>(kPeersMade) * (pair.isOneGpu() ? 2 : 1);
  return (static_cast<double>(after) - static_cast<double>(before)) / ends;
}

Status GpuConnectPartner::accept(GpuPipe& pipe, const AcceptRequest& request) {
  side_.desk().armed.store(request.number, std::memory_order_release);
  PEERLANE_ASSIGN(const Peer peer, side_.context().accept(kGpuPatience));
  PEERLANE_ASSIGN(const Signal signal, Signal::create(peer, 0));
  PEERLANE_RETURN_IF_ERROR(spinUntil([&] { return signal.value() >= 1; }, [] { return false; },
                                     "the signal of a new peer"));
  GpuFirstByte first;
  first.seenAt = gpuBenchNow();
  uint64_t word = 0;
  std::byte* const place = side_.doorstep().data();
  PEERLANE_RETURN_IF_ERROR(copyFromGpu(side_.stream(), &word, place, sizeof(word)));
  PEERLANE_RETURN_IF_ERROR(setGpuBytes(side_.stream(), place, 0xee, sizeof(word)));
  if (word != request.expected) first.wrong = sizeof(word);
  return pipe.send(kGpuFirstByteIs, first);
}

Status GpuConnectPartner::makeExtra(GpuPipe& pipe, uint64_t count) {
  extra_.clear();
  for (uint64_t i = 0; i < count; ++i) {
    ContextOptions options;
    options.devices = {side_.device()};
    options.config = side_.context().config();
    Extra extra;
    PEERLANE_ASSIGN(extra.context, Context::create(std::move(options)));
    extra_.push_back(std::move(extra));
  }
  return pipe.send(kReady);
}

Status GpuConnectPartner::connectExtra(GpuPipe& pipe, const std::string& ticket) {
  for (Extra& extra : extra_) {
    PEERLANE_ASSIGN(extra.peer, extra.context->connect(ticket, kGpuPatience));
    PEERLANE_RETURN_IF_ERROR(tell(extra.peer, side_.deviceStream()));
  }
  return pipe.send(kReady);
}

Status GpuConnectPartner::dropExtra(GpuPipe& pipe) {
  extra_.clear();
  return pipe.send(kReady);
}

}  // namespace peerlane::bench
