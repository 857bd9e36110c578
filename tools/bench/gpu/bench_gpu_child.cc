// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/gpu/bench_gpu_child.h"

#include <fcntl.h>
#include <sys/prctl.h>

#include <csignal>
#include <cstring>
#include <optional>

#include "tools/bench/gpu/bench_gpu_connect.h"
#include "tools/bench/gpu/bench_gpu_copy.h"
#include "tools/bench/gpu/bench_gpu_lists.h"
#include "tools/bench/gpu/bench_gpu_messages.h"
#include "tools/bench/gpu/bench_gpu_pingpong.h"
#include "tools/bench/gpu/bench_gpu_side.h"

namespace peerlane::bench {
namespace {

class Child {
 public:
  explicit Child(int pipe) : pipe_(Descriptor(pipe)) {}

  // Until the parent is gone.
  void serve() {
    for (;;) {
      auto message = pipe_.plain().receive();
      if (!message) return;
      const Status done = answer(*message);
      if (done.isOk()) continue;
      const std::string why = done.toString();
      if (!pipe_.plain().send(kFailed, std::as_bytes(std::span(why))).isOk()) return;
    }
  }

 private:
  Status answer(const BenchMessage& message);
  Status answerOnSide(const BenchMessage& message);
  Status setUp(const BenchMessage& message);
  Status makeContext();
  Status makeRegions();
  Status verify(const BenchMessage& message);
  Status look(const WatchRequest& request);
  Status watch(const WatchRequest& request);
  Status push(const PushRequest& request);
  Status counts();
  bool abandoned(uint64_t number) {
    return side_->desk().abandon.load(std::memory_order_acquire) >= number;
  }

  GpuPipe pipe_;
  std::unique_ptr<GpuSide> side_;
  std::optional<GpuConnectPartner> connect_;
};

Status Child::setUp(const BenchMessage& message) {
  PEERLANE_ASSIGN(const GpuSetup setup, message.as<GpuSetup>());
  if (message.descriptors.size() != 1) return Status(Code::kInternal, "the desk is missing");
  PEERLANE_ASSIGN(side_, GpuSide::create(setup, message.descriptors[0]));
  return pipe_.send(kReady);
}

Status Child::makeContext() {
  PEERLANE_RETURN_IF_ERROR(side_->makeContext());
  const std::string ticket = side_->context().ticket();
  return pipe_.plain().send(kTicketIs, std::as_bytes(std::span(ticket)));
}

Status Child::makeRegions() {
  PEERLANE_ASSIGN(const Peer peer, side_->context().accept(kGpuPatience));
  PEERLANE_RETURN_IF_ERROR(side_->exportRegions(pipe_));
  PEERLANE_RETURN_IF_ERROR(side_->importRegions(pipe_, peer));
  connect_.emplace(*side_);
  return pipe_.send(kReady);
}

Status Child::verify(const BenchMessage& message) {
  uint64_t seed = 0;
  if (message.content.size() < sizeof(seed)) return Status(Code::kInternal, "no seed");
  std::memcpy(&seed, message.content.data(), sizeof(seed));
  std::vector<GpuSpan> spans((message.content.size() - sizeof(seed)) / sizeof(GpuSpan));
  std::memcpy(spans.data(), message.content.data() + sizeof(seed), spans.size() * sizeof(GpuSpan));
  PEERLANE_ASSIGN(const uint64_t wrong, side_->countWrong(seed, spans));
  return pipe_.send(kWrongIs, wrong);
}

Status Child::look(const WatchRequest& request) {
  const auto stop = [&] { return abandoned(request.number); };
  if (request.ours) {
    const Signal& signal = side_->signal();
    return spinUntil([&] { return signal.value() >= request.value; }, stop, "the signal of a put");
  }
  const std::atomic<uint64_t>& flag = side_->flagIn();
  return spinUntil([&] { return flag.load(std::memory_order_acquire) >= request.value; }, stop,
                   "the flag of a raw copy");
}

Status Child::watch(const WatchRequest& request) {
  side_->desk().armed.store(request.number, std::memory_order_release);
  PEERLANE_RETURN_IF_ERROR(look(request));
  return pipe_.send(kGpuSeen, gpuBenchNow());
}

Status Child::push(const PushRequest& request) {
  GpuCase what;
  what.blockBytes = request.bytes;
  GpuCopy copy(*side_, what);
  PEERLANE_RETURN_IF_ERROR(copy.begin(false));
  const uint64_t number = request.watch.number;
  GpuDesk& desk = side_->desk();
  desk.armed.store(number, std::memory_order_release);
  PEERLANE_RETURN_IF_ERROR(
      spinUntil([&] { return desk.go.load(std::memory_order_acquire) >= number; },
                [&] { return abandoned(number); }, "the word to begin"));
  const Contender who = request.watch.ours ? Contender::kOurs : Contender::kCeiling;
  PEERLANE_RETURN_IF_ERROR(copy.post(who, request.flag));
  PEERLANE_RETURN_IF_ERROR(look(request.watch));
  const double seen = gpuBenchNow();
  PEERLANE_RETURN_IF_ERROR(copy.wait(who, request.flag));
  return pipe_.send(kGpuSeen, seen);
}

Status Child::counts() {
  PEERLANE_RETURN_IF_ERROR(side_->stream().wait());
  return pipe_.send(
      kGpuCountsAre,
      GpuCounts{side_->signal().value(), side_->desk().toChild.load(std::memory_order_acquire)});
}

Status Child::answer(const BenchMessage& message) {
  if (message.kind == kGpuSetup) return setUp(message);
  if (side_ == nullptr) return Status(Code::kInternal, "a request before the set-up");
  switch (message.kind) {
    case kGpuUsed: {
      PEERLANE_ASSIGN(const uint64_t used, usedGpuBytes());
      return pipe_.send(kGpuNumberIs, used);
    }
    case kGpuMakeContext: return makeContext();
    case kGpuMakeRegions: return makeRegions();
    case kGpuEnd:
      connect_.reset();
      side_->letGoOfOther();
      return pipe_.send(kReady);
    default: break;
  }
  if (!connect_) return Status(Code::kInternal, "a request before the regions were there");
  return answerOnSide(message);
}

Status Child::answerOnSide(const BenchMessage& message) {
  switch (message.kind) {
    case kGpuFill: {
      PEERLANE_ASSIGN(const FillRequest request, message.as<FillRequest>());
      PEERLANE_RETURN_IF_ERROR(side_->fill(request.isSource, request.bytes, request.seed));
      return pipe_.send(kReady);
    }
    case kGpuPoison: {
      PEERLANE_ASSIGN(const uint64_t bytes, message.as<uint64_t>());
      PEERLANE_RETURN_IF_ERROR(side_->poison(bytes));
      return pipe_.send(kReady);
    }
    case kGpuVerify: return verify(message);
    case kGpuWatch: {
      PEERLANE_ASSIGN(const WatchRequest request, message.as<WatchRequest>());
      return watch(request);
    }
    case kGpuPush: {
      PEERLANE_ASSIGN(const PushRequest request, message.as<PushRequest>());
      return push(request);
    }
    case kGpuCounts: return counts();
    case kGpuAccept: {
      PEERLANE_ASSIGN(const AcceptRequest request, message.as<AcceptRequest>());
      return connect_->accept(pipe_, request);
    }
    case kGpuMakeExtra: {
      PEERLANE_ASSIGN(const uint64_t count, message.as<uint64_t>());
      return connect_->makeExtra(pipe_, count);
    }
    case kGpuConnectExtra:
      return connect_->connectExtra(
          pipe_, std::string(reinterpret_cast<const char*>(message.content.data()),
                             message.content.size()));
    case kGpuDropExtra: return connect_->dropExtra(pipe_);
    case kGpuPingpong: {
      PEERLANE_ASSIGN(const GpuPingpong request, message.as<GpuPingpong>());
      return serveGpuPingpong(*side_, pipe_, request);
    }
    case kGpuMessages: {
      PEERLANE_ASSIGN(const GpuPingpong request, message.as<GpuPingpong>());
      return serveGpuMessages(*side_, pipe_, request);
    }
    case kGpuLists: {
      PEERLANE_ASSIGN(const GpuList request, message.as<GpuList>());
      return serveGpuLists(*side_, pipe_, request);
    }
    default:
      return Status(Code::kInternal,
                    "bench request " + std::to_string(message.kind) + " is unknown");
  }
}

}  // namespace

int runGpuBenchChild(int pipe) {
  // Only a parent of ours leaves a pipe here.
  if (::fcntl(pipe, F_GETFD) < 0) return 2;
  ::fcntl(pipe, F_SETFD, FD_CLOEXEC);
  // A look at the pipe notices as much, but not while something spins.
  (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
  Child(pipe).serve();
  return 0;
}

}  // namespace peerlane::bench
