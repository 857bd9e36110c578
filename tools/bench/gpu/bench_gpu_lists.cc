// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/gpu/bench_gpu_lists.h"

#include <memory>
#include <vector>

namespace peerlane::bench {
namespace {

uint64_t strideOf(uint64_t pieceBytes) {
  return (pieceBytes + 255) / 256 * 256;
}

// Piece i lies in place i where it comes from, and in the places' opposite order where it goes.
uint64_t fromOf(const GpuList& request, uint64_t piece) {
  return piece * strideOf(request.pieceBytes);
}
uint64_t toOf(const GpuList& request, uint64_t piece) {
  return (request.pieces - 1 - piece) * strideOf(request.pieceBytes);
}

// One side of it: the parent sends, the child receives.
class ListStream {
 public:
  static Result<std::unique_ptr<ListStream>> create(GpuSide& side, const GpuList& request) {
    std::unique_ptr<ListStream> stream(new ListStream(side, request));
    std::vector<Peer> peers(2);
    peers[stream->other_] = side.peer();
    CommunicatorOptions options;
    options.timeout = kGpuPatience;
    PEERLANE_ASSIGN(stream->ranks_,
                    Communicator::create(side.context(), peers, 1 - stream->other_, options));
    const Region used[] = {side.destination()};
    PEERLANE_RETURN_IF_ERROR(stream->ranks_->prepare(stream->other_, used, kGpuPatience));
    return stream;
  }

  // So many, one after the other.
  Status pass(uint64_t count) {
    Transfer last;
    for (uint64_t i = 0; i < count; ++i) {
      PEERLANE_ASSIGN(last, post());
    }
    return last.wait(kGpuPatience);
  }

 private:
  ListStream(GpuSide& side, const GpuList& request)
      : request_(request), isSender_(side.setup().isParent), other_(isSender_ ? 1 : 0) {
    on_.deviceStream = side.deviceStream();
    const Region& region = isSender_ ? side.source() : side.destination();
    for (uint64_t i = 0; i < request.pieces; ++i)
      blocks_.push_back(
          {&region, isSender_ ? fromOf(request, i) : toOf(request, i), request.pieceBytes});
  }
  Result<Transfer> post() {
    if (isSender_)
      return request_.asOne ? ranks_->sendList(other_, blocks_, on_)
                            : ranks_->sendBatch(other_, blocks_, on_);
    return request_.asOne ? ranks_->recvList(other_, blocks_, on_)
                          : ranks_->recvBatch(other_, blocks_, on_);
  }

  const GpuList request_;
  const bool isSender_;
  const Rank other_;
  MessageOptions on_;
  std::vector<MessageBlock> blocks_;
  std::unique_ptr<Communicator> ranks_;
};

Status passOurs(GpuPair& pair, const GpuList& request, Samples& times) {
  PEERLANE_ASSIGN(const auto stream, ListStream::create(pair.side(), request));
  PEERLANE_RETURN_IF_ERROR(pair.pipe().receive(kReady).status());
  for (uint64_t sample = 0; sample < request.warmup + request.samples; ++sample) {
    const double start = gpuBenchNow();
    PEERLANE_RETURN_IF_ERROR(stream->pass(request.rounds));
    if (sample >= request.warmup)
      times.add((gpuBenchNow() - start) / static_cast<double>(request.rounds));
  }
  // Its end is told to the other side, so not before that has received all.
  return pair.pipe().receive(kReady).status();
}

Status passByPuts(GpuPair& pair, const GpuList& request, Samples& times) {
  GpuSide& side = pair.side();
  std::vector<Block> blocks;
  for (uint64_t i = 0; i < request.pieces; ++i)
    blocks.push_back({&side.source(), fromOf(request, i), &side.otherDestination().remote,
                      toOf(request, i), request.pieceBytes});
  PostOptions options;
  options.deviceStream = side.deviceStream();
  options.engine = Engine::kSm;
  for (uint64_t sample = 0; sample < request.warmup + request.samples; ++sample) {
    Transfer last;
    const double start = gpuBenchNow();
    for (uint64_t i = 0; i < request.rounds; ++i) {
      PEERLANE_ASSIGN(last, put(side.peer(), blocks, options));
    }
    PEERLANE_RETURN_IF_ERROR(last.wait(kGpuPatience));
    if (sample >= request.warmup)
      times.add((gpuBenchNow() - start) / static_cast<double>(request.rounds));
  }
  return Status::ok();
}

// New bytes, which must have arrived.
Status begin(GpuPair& pair, const GpuList& request, uint64_t& seed) {
  seed = pair.nextSeed();
  const uint64_t bytes = gpuListBytes(request.pieces, request.pieceBytes);
  PEERLANE_RETURN_IF_ERROR(pair.side().fill(true, bytes, seed));
  return pair.poisonOther(bytes);
}

Status verify(GpuPair& pair, const GpuList& request, uint64_t seed, uint64_t& wrong) {
  std::vector<GpuSpan> spans;
  for (uint64_t i = 0; i < request.pieces; ++i)
    spans.push_back({toOf(request, i), fromOf(request, i), request.pieceBytes});
  PEERLANE_ASSIGN(const uint64_t missed, pair.verifyOther(seed, spans));
  wrong += missed;
  return Status::ok();
}

}  // namespace

uint64_t gpuListBytes(uint64_t pieces, uint64_t pieceBytes) {
  return pieces * strideOf(pieceBytes);
}

Result<GpuListTimes> measureGpuLists(GpuPair& pair, uint64_t pieces, uint64_t pieceBytes,
                                     bool asOne, bool withCeiling, uint64_t samples) {
  const GpuList request{.asOne = asOne,
                        .pieces = pieces,
                        .pieceBytes = pieceBytes,
                        .rounds = asOne ? uint64_t{20} : 2,
                        .warmup = 3,
                        .samples = samples > 0 ? samples : 31};
  GpuListTimes times;
  uint64_t seed = 0;
  if (withCeiling) {
    PEERLANE_RETURN_IF_ERROR(begin(pair, request, seed));
    GpuList puts = request;
    puts.rounds = 20;
    PEERLANE_RETURN_IF_ERROR(passByPuts(pair, puts, times.ceiling));
    PEERLANE_RETURN_IF_ERROR(verify(pair, request, seed, times.wrong));
  }
  PEERLANE_RETURN_IF_ERROR(begin(pair, request, seed));
  PEERLANE_RETURN_IF_ERROR(pair.pipe().send(kGpuLists, request));
  PEERLANE_RETURN_IF_ERROR(passOurs(pair, request, times.ours));
  PEERLANE_RETURN_IF_ERROR(verify(pair, request, seed, times.wrong));
  return times;
}

Status serveGpuLists(GpuSide& side, GpuPipe& pipe, const GpuList& request) {
  PEERLANE_ASSIGN(const auto stream, ListStream::create(side, request));
  PEERLANE_RETURN_IF_ERROR(pipe.send(kReady));
  for (uint64_t sample = 0; sample < request.warmup + request.samples; ++sample)
    PEERLANE_RETURN_IF_ERROR(stream->pass(request.rounds));
  return pipe.send(kReady);
}

}  // namespace peerlane::bench
