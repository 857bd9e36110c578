// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/host/bench_message.h"

#include <unistd.h>

#include <algorithm>

#include "tools/bench/sides/bench_row.h"
#include "tools/ceiling/ceiling_pingpong.h"
#include "tools/ceiling/ceiling_socket.h"
#include "tools/memory/byte_pattern.h"

namespace peerlane::bench {
namespace {

constexpr auto kMessagePatience = std::chrono::seconds(120);
constexpr uint64_t kAlignment = 64;
// As for put and get: a sample of small messages is many of them, each at its own place.
constexpr uint64_t kMessageSlots = 64;
constexpr uint64_t kMessageSlotsBytes = 256 << 10;
// Up to this size two plain copies can beat one by the kernel.
constexpr uint64_t kStagedBytes = 16 << 10;

MessagesRequest requestOf(const BenchOptions& options, uint64_t bytes) {
  MessagesRequest request;
  request.isBatch = options.operation == "batch";
  request.bytes = request.isBatch ? options.blockBytes : bytes;
  request.stride = (request.bytes + kAlignment - 1) / kAlignment * kAlignment;
  request.count = request.isBatch
                      ? options.blocks
                      : std::clamp<uint64_t>(kMessageSlotsBytes / request.stride, 1, kMessageSlots);
  return request;
}

// One direction's. Messages that the kernel copies need none.
uint64_t stageBytesFor(const BenchOptions& options) {
  uint64_t most = 4096;
  for (const uint64_t bytes : sweep(options)) {
    const MessagesRequest request = requestOf(options, bytes);
    if (request.bytes <= kStagedBytes) most = std::max(most, request.stride * request.count);
  }
  return (most + 4095) / 4096 * 4096;
}

Protocol protocolOf(const std::string& name) {
  if (name == "eager") return Protocol::kEager;
  if (name == "get") return Protocol::kGet;
  if (name == "put") return Protocol::kPut;
  return name == "ring" ? Protocol::kRing : Protocol::kAuto;
}

Status ended(const Result<Transfer>& posted) {
  return posted ? posted->wait(kMessagePatience) : posted.status();
}

RawGame rawGame(BenchEndpoint& endpoint, MessageSide& side, const MessagesRequest& request,
                bool isParent, pid_t other) {
  RawFlags& flags = endpoint.flags();
  RawGame game;
  game.out = side.rawPieces(request, isParent);
  game.stamp = false;
  game.way = request.way;
  game.other = other;
  game.mine = isParent ? &flags.toParent : &flags.toChild;
  game.theirs = isParent ? &flags.toChild : &flags.toParent;
  game.base = game.mine->load(std::memory_order_acquire);
  return game;
}

}  // namespace

Status MessageSide::open(const MessageSetup& setup, const Descriptor& stage) {
  stageBytes_ = setup.stageBytes;
  PEERLANE_ASSIGN(stage_, RawMapping::create(stage.get(), 0, setup.stageBytes));
  CommunicatorOptions options;
  options.protocol = static_cast<Protocol>(setup.protocol);
  PEERLANE_ASSIGN(communicator_,
                  Communicator::create(endpoint_.context(), endpoint_.peer(), options));
  return Status::ok();
}

Result<Transfer> MessageSide::send(const MessagesRequest& request, uint64_t i) {
  return communicator_->send(otherRank(), endpoint_.source(), i * request.stride, request.bytes);
}

Result<Transfer> MessageSide::receive(const MessagesRequest& request, uint64_t i) {
  return communicator_->recv(otherRank(), endpoint_.destination(), i * request.stride,
                             request.bytes);
}

Result<Transfer> MessageSide::sendBatch(const MessagesRequest& request) {
  std::vector<MessageBlock> blocks;
  for (uint64_t i = 0; i < request.count; ++i)
    blocks.push_back({&endpoint_.source(), i * request.stride, request.bytes});
  return communicator_->sendBatch(otherRank(), blocks);
}

Result<Transfer> MessageSide::receiveBatch(const MessagesRequest& request) {
  std::vector<MessageBlock> blocks;
  for (uint64_t i = 0; i < request.count; ++i)
    blocks.push_back({&endpoint_.destination(), i * request.stride, request.bytes});
  return communicator_->recvBatch(otherRank(), blocks);
}

std::vector<RawPiece> MessageSide::rawPieces(const MessagesRequest& request, bool isParent) {
  const OtherRegion& to = endpoint_.otherDestination();
  std::byte* base =
      to.mapping ? to.mapping->data() : stage_->data() + (isParent ? 0 : stageBytes_ / 2);
  std::vector<RawPiece> pieces;
  for (uint64_t i = 0; i < request.count; ++i)
    pieces.push_back({endpoint_.source().data() + i * request.stride, base + i * request.stride,
                      to.address + i * request.stride, request.bytes});
  return pieces;
}

Status MessagePartner::open(BenchPipe& pipe, const MessageSetup& setup, const Descriptor& stage) {
  side_ = std::make_unique<MessageSide>(endpoint_);
  PEERLANE_RETURN_IF_ERROR(side_->open(setup, stage));
  return pipe.send(kReady, {});
}

// The next receive is posted before the answer goes out: the parent's next message finds it.
Status MessagePartner::answerEach(BenchPipe& pipe, const MessagesRequest& request) {
  auto receive = side_->receive(request, 0);
  PEERLANE_RETURN_IF_ERROR(pipe.send(kReady, {}));
  for (uint64_t i = 0; i < request.count; ++i) {
    PEERLANE_RETURN_IF_ERROR(ended(receive));
    if (i + 1 < request.count) receive = side_->receive(request, i + 1);
    const auto sent = side_->send(request, i);
    if (i + 1 < request.count && sent) continue;  // its end is implied by the next message's
    PEERLANE_RETURN_IF_ERROR(ended(sent));
  }
  return pipe.send(kReady, {});
}

Status MessagePartner::takeBatch(BenchPipe& pipe, const MessagesRequest& request) {
  const auto receive = side_->receiveBatch(request);
  PEERLANE_RETURN_IF_ERROR(pipe.send(kReady, {}));
  PEERLANE_RETURN_IF_ERROR(ended(receive));
  return pipe.send(kReady, {});
}

Status MessagePartner::answerRaw(BenchPipe& pipe, const MessagesRequest& request) {
  const RawGame game = rawGame(endpoint_, *side_, request, false, ::getppid());
  PEERLANE_RETURN_IF_ERROR(pipe.send(kReady, {}));
  if (!request.isBatch) PEERLANE_RETURN_IF_ERROR(rawReturn(game, request.count));
  return pipe.send(kReady, {});
}

Status MessagePartner::serve(BenchPipe& pipe, const MessagesRequest& request) {
  if (request.raw) return answerRaw(pipe, request);
  return request.isBatch ? takeBatch(pipe, request) : answerEach(pipe, request);
}

namespace {

class MessageRow {
 public:
  MessageRow(BenchPair& pair, MessageSide& side, const BenchOptions& options, uint64_t bytes)
      : pair_(pair), side_(side), request_(requestOf(options, bytes)) {}

  Status begin(bool withCeiling) {
    const std::string engine = pair_.engine();
    if (!withCeiling) return Status::ok();
    if (engine == "socket") {
      PEERLANE_RETURN_IF_ERROR(pair_.pipe().send(kListen, {}));
      PEERLANE_ASSIGN(const BenchMessage answer, receiveKind(pair_.pipe(), kPortIs));
      PEERLANE_ASSIGN(const uint16_t port, answer.as<uint16_t>());
      PEERLANE_ASSIGN(socket_, RawSocket::connect(port));
      ceilingBy_ = "loopback socket";
      return receiveKind(pair_.pipe(), kReady).status();
    }
    const bool mapped = pair_.endpoint().otherDestination().mapping != nullptr;
    const auto trial = [this](CopyWay way) -> Result<double> {
      way_ = way;
      PEERLANE_RETURN_IF_ERROR(prepare(false));
      Samples samples;
      PEERLANE_RETURN_IF_ERROR(raw(samples));
      return samples.median();
    };
    PEERLANE_ASSIGN(way_,
                    fastestWay(copyWays(mapped || request_.bytes <= kStagedBytes, true), trial));
    ceilingBy_ = nameOf(way_, true) + " + flag";
    return Status::ok();
  }
  const std::string& ceilingBy() const { return ceilingBy_; }

  Status prepare(bool checked) {
    BenchEndpoint& endpoint = pair_.endpoint();
    seed_ = seeds_.next();
    answerSeed_ = seeds_.next();
    fillPattern({endpoint.source().data(), span()}, seed_);
    PEERLANE_RETURN_IF_ERROR(pair_.fillOther(true, span(), answerSeed_));
    if (!checked) return Status::ok();
    fillPattern({endpoint.destination().data(), span()}, otherThan(answerSeed_));
    return pair_.fillOther(false, span(), otherThan(seed_));
  }

  Status sample(Contender who, Samples& samples) {
    if (who == Contender::kOurs) return ours(samples);
    return socket_ ? rawSocket(samples) : raw(samples);
  }

  Result<uint64_t> check(Contender who) {
    const bool intoRegions =
        pair_.endpoint().otherDestination().mapping || way_ == CopyWay::kKernel;
    if (who == Contender::kCeiling && (socket_ || !intoRegions)) return uint64_t{0};
    std::vector<VerifyPiece> pieces;
    for (uint64_t i = 0; i < request_.count; ++i)
      pieces.push_back({i * request_.stride, i * request_.stride, request_.bytes});
    PEERLANE_ASSIGN(uint64_t wrong, pair_.verifyOther({seed_, 0}, pieces));
    if (!request_.isBatch)
      for (const VerifyPiece& piece : pieces)
        wrong += countWrong({pair_.endpoint().destination().data() + piece.offset, piece.bytes},
                            answerSeed_, piece.offset);
    return wrong;
  }

 private:
  uint64_t span() const { return request_.stride * request_.count; }

  Status ours(Samples& samples) {
    PEERLANE_RETURN_IF_ERROR(pair_.pipe().send(kMessages, request_));
    PEERLANE_RETURN_IF_ERROR(receiveKind(pair_.pipe(), kReady).status());
    const Clock::time_point start = Clock::now();
    if (request_.isBatch) {
      PEERLANE_RETURN_IF_ERROR(ended(side_.sendBatch(request_)));
      samples.add(microsecondsSince(start));
    } else {
      for (uint64_t i = 0; i < request_.count; ++i) {
        const auto receive = side_.receive(request_, i);
        const auto sent = side_.send(request_, i);
        if (!sent) return sent.status();
        PEERLANE_RETURN_IF_ERROR(ended(receive));
      }
      samples.add(microsecondsSince(start) / 2 / static_cast<double>(request_.count));
    }
    return receiveKind(pair_.pipe(), kReady).status();
  }

  Status raw(Samples& samples) {
    MessagesRequest request = request_;
    request.raw = true;
    request.way = way_;
    PEERLANE_RETURN_IF_ERROR(pair_.pipe().send(kMessages, request));
    PEERLANE_RETURN_IF_ERROR(receiveKind(pair_.pipe(), kReady).status());
    const RawGame game = rawGame(pair_.endpoint(), side_, request, true, pair_.child());
    if (request.isBatch) {
      const Clock::time_point start = Clock::now();
      PEERLANE_RETURN_IF_ERROR(copyPieces(way_, pair_.child(), game.out, true));
      game.theirs->store(game.base + 1, std::memory_order_release);
      samples.add(microsecondsSince(start));
    } else {
      PEERLANE_RETURN_IF_ERROR(rawServe(game, 0, 1, request.count, samples));
    }
    return receiveKind(pair_.pipe(), kReady).status();
  }

  Status rawSocket(Samples& samples) {
    SocketRequest request;
    request.isPut = true;
    request.bothWays = !request_.isBatch;
    request.bytes = request_.isBatch ? request_.bytes * request_.count : request_.bytes;
    request.stride = request_.stride;
    request.count = request_.isBatch ? 1 : request_.count;
    PEERLANE_RETURN_IF_ERROR(pair_.pipe().send(kServeSocket, request));
    PEERLANE_RETURN_IF_ERROR(socket_->greet(true));
    std::byte* const from = pair_.endpoint().source().data();
    std::byte* const to = pair_.endpoint().destination().data();
    const Clock::time_point start = Clock::now();
    for (uint64_t i = 0; i < request.count; ++i) {
      const uint64_t at = i * request.stride;
      PEERLANE_RETURN_IF_ERROR(request.bothWays
                                   ? socket_->exchange(from + at, to + at, request.bytes)
                                   : socket_->put(from, request.bytes));
    }
    const double ways = request.bothWays ? 2 : 1;
    samples.add(microsecondsSince(start) / ways / static_cast<double>(request.count));
    return receiveKind(pair_.pipe(), kReady).status();
  }

  BenchPair& pair_;
  MessageSide& side_;
  const MessagesRequest request_;
  Seeds seeds_;
  uint64_t seed_ = 0;
  uint64_t answerSeed_ = 0;
  CopyWay way_ = CopyWay::kMemcpy;
  std::string ceilingBy_;
  std::unique_ptr<RawSocket> socket_;
};

}  // namespace

uint64_t messageRegionBytes(const BenchOptions& options) {
  uint64_t most = 0;
  for (const uint64_t bytes : sweep(options)) {
    const MessagesRequest request = requestOf(options, bytes);
    most = std::max(most, request.stride * request.count);
  }
  return most;
}

Status benchMessages(BenchPair& pair, const BenchOptions& options, BenchReport& report) {
  MessageSide side(pair.endpoint());
  const MessageSetup setup{static_cast<uint8_t>(protocolOf(options.protocol)),
                           2 * stageBytesFor(options)};
  PEERLANE_ASSIGN(const Descriptor stage, makeSharedFile("bench-stage", setup.stageBytes));
  const int number = stage.get();
  PEERLANE_RETURN_IF_ERROR(pair.pipe().send(kOpenMessages, setup, {&number, 1}));
  PEERLANE_RETURN_IF_ERROR(side.open(setup, stage));
  PEERLANE_RETURN_IF_ERROR(receiveKind(pair.pipe(), kReady).status());
  for (const uint64_t bytes : sweep(options)) {
    MessageRow row(pair, side, options, bytes);
    PEERLANE_RETURN_IF_ERROR(row.begin(options.ceiling));
    Contest contest = contestFor(options, 2 * bytes);
    contest.prepare = [&row](Contender, bool checked) { return row.prepare(checked); };
    contest.sample = [&row](Contender who, Samples& out) { return row.sample(who, out); };
    contest.check = [&row](Contender who) { return row.check(who); };
    PEERLANE_ASSIGN(Outcome outcome, runContest(contest));
    BenchRow line = rowFor(pair, options, bytes);
    line.ceilingBy = row.ceilingBy();
    line.outcome = std::move(outcome);
    report.add(std::move(line));
  }
  return Status::ok();
}

}  // namespace peerlane::bench
