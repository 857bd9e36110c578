// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/port/bench_port_side.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "tools/bench/gpu/bench_gpu_pattern.h"

namespace peerlane::bench {
namespace {

constexpr uint64_t kWarmup = 3;
// In the memory of `notes_`.
constexpr uint64_t kWrongAt = 0, kSpanAt = 256, kCountersAt = 4096, kRawCountersAt = 16384;
constexpr uint64_t kNotesBytes = 32768;
constexpr uint64_t kWordsBytes = uint64_t{2} << 20;

Status gone() {
  return Status(Code::kPeerLost, "the other process has ended");
}

}  // namespace

PortLine::~PortLine() {
  ::close(fd_);
}

Status PortLine::send(const void* data, size_t bytes) const {
  return ::send(fd_, data, bytes, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes) ? Status::ok()
                                                                               : gone();
}

Status PortLine::receive(void* data, size_t bytes) const {
  return ::recv(fd_, data, bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes) ? Status::ok()
                                                                              : gone();
}

Status PortLine::meet() const {
  char dot = '.';
  PEERLANE_RETURN_IF_ERROR(send(&dot, 1));
  return receive(&dot, 1);
}

Result<std::string> PortLine::swap(const std::string& mine) const {
  uint64_t bytes = mine.size();
  PEERLANE_RETURN_IF_ERROR(send(&bytes, sizeof bytes));
  PEERLANE_RETURN_IF_ERROR(send(mine.data(), mine.size()));
  PEERLANE_RETURN_IF_ERROR(receive(&bytes, sizeof bytes));
  std::string theirs(bytes, '\0');
  PEERLANE_RETURN_IF_ERROR(receive(theirs.data(), theirs.size()));
  return theirs;
}

Result<std::unique_ptr<PortSide>> PortSide::create(bool isParent, int gpu, bool isOneGpu,
                                                   PortLine& line) {
  std::unique_ptr<PortSide> side(new PortSide(isParent, isOneGpu, line));
  PEERLANE_RETURN_IF_ERROR(side->open(gpu));
  return side;
}

PortSide::~PortSide() {
  service_.reset();
  (void)line_.meet();
}

Status PortSide::open(int gpu) {
  PEERLANE_RETURN_IF_ERROR(useGpu(gpu).status());
  PEERLANE_RETURN_IF_ERROR(loadPortKernels());
  PEERLANE_RETURN_IF_ERROR(loadGpuPatterns());
  PEERLANE_ASSIGN(stream_, GpuStream::create());
  PEERLANE_ASSIGN(otherStream_, GpuStream::create());
  PEERLANE_ASSIGN(notes_, GpuBuffer::create(kNotesBytes));
  const Device device{DeviceKind::kCuda, gpu};
  ContextOptions options;
  options.devices = {device};
  PEERLANE_ASSIGN(context_, Context::create(std::move(options)));
  PEERLANE_ASSIGN(const std::string ticket, line_.swap(context_->ticket()));
  if (isParent_) {
    PEERLANE_ASSIGN(peer_, context_->accept(kGpuPatience));
  } else {
    PEERLANE_ASSIGN(peer_, context_->connect(ticket, kGpuPatience));
  }
  PEERLANE_ASSIGN(source_, context_->allocate(kMostBytes, {.device = device}));
  PEERLANE_ASSIGN(destination_, context_->allocate(kMostBytes, {.device = device}));
  PEERLANE_ASSIGN(words_, context_->allocate(kWordsBytes, {.device = device}));
  const auto share = [&](const Region& mine) -> Result<RemoteRegion> {
    const auto reference = mine.share();
    PEERLANE_ASSIGN(
        const std::string theirs,
        line_.swap(std::string(reinterpret_cast<const char*>(reference.data()), reference.size())));
    return peer_.importRegion(std::as_bytes(std::span(theirs)));
  };
  PEERLANE_ASSIGN(theirDestination_, share(destination_));
  PEERLANE_ASSIGN(theirWords_, share(words_));
  PEERLANE_ASSIGN(service_, ProxyService::create(
                                *context_, {.device = device, .residentBlocks = kResidentBlocks}));
  PEERLANE_ASSIGN(connection_, service_->connect(peer_));
  PEERLANE_ASSIGN(sourceId_, service_->addMemory(source_));
  PEERLANE_ASSIGN(theirDestinationId_, service_->addMemory(theirDestination_));
  PEERLANE_ASSIGN(wordsId_, service_->addMemory(words_));
  PEERLANE_ASSIGN(theirWordsId_, service_->addMemory(theirWords_));
  if (isOneGpu_) {
    PEERLANE_ASSIGN(hostDestination_, context_->allocate(kMostBytes));
    PEERLANE_ASSIGN(theirHostDestination_, share(hostDestination_));
    PEERLANE_ASSIGN(theirHostDestinationId_, service_->addMemory(theirHostDestination_));
  }
  PEERLANE_RETURN_IF_ERROR(service_->start());
  // The raw patterns go by the same mappings.
  PEERLANE_ASSIGN(const PortChannel channel, freshChannel());
  otherDestination_ = channel.deviceHandle().remoteEntry.address;
  PEERLANE_ASSIGN(const PortChannel words,
                  service_->channel(channel.semaphore(), theirWordsId_, wordsId_));
  otherWords_ = reinterpret_cast<uint64_t*>(words.deviceHandle().remoteEntry.address);
  if (otherDestination_ == nullptr || otherWords_ == nullptr)
    return Status(Code::kNotSupported,
                  "memory of the other GPU is not mapped here: " + channel.explain());
  return line_.meet();
}

std::string PortSide::route() const {
  const Route route = peer_.route();
  return (route.deviceEngine.empty() ? route.link : "cuda_ipc") + ", requests by " +
         connection_.engine();
}

Result<PortChannel> PortSide::freshChannel() {
  PEERLANE_ASSIGN(const PortSemaphore semaphore,
                  service_->addSemaphore(connection_, nextTag_++, kGpuPatience));
  return service_->channel(semaphore, theirDestinationId_, sourceId_);
}

Result<PortChannel> PortSide::packetChannel() {
  PEERLANE_ASSIGN(const PortChannel channel, freshChannel());
  return service_->channel(channel.semaphore(), theirWordsId_, sourceId_);
}

Result<PortChannel> PortSide::leavingChannel() {
  PEERLANE_ASSIGN(const PortChannel channel, freshChannel());
  if (!isOneGpu_) return channel;
  return service_->channel(channel.semaphore(), theirHostDestinationId_, sourceId_);
}

uint64_t* PortSide::wrong() const {
  return reinterpret_cast<uint64_t*>(notes_->data() + kWrongAt);
}
uint64_t* PortSide::counters() const {
  return reinterpret_cast<uint64_t*>(notes_->data() + kCountersAt);
}
uint64_t* PortSide::rawCounters() const {
  return reinterpret_cast<uint64_t*>(notes_->data() + kRawCountersAt);
}

Status PortSide::freshWords() {
  PEERLANE_RETURN_IF_ERROR(line_.meet());
  PEERLANE_RETURN_IF_ERROR(setGpuBytes(*stream_, words_.data(), 0, kWordsBytes));
  PEERLANE_RETURN_IF_ERROR(setGpuBytes(*stream_, notes_->data(), 0, kNotesBytes));
  return line_.meet();
}

Status PortSide::fill(uint64_t bytes, uint64_t seed) {
  PEERLANE_RETURN_IF_ERROR(setGpuBytes(*stream_, destination_.data(), 0xa5, bytes));
  PEERLANE_RETURN_IF_ERROR(
      fillGpuPattern(stream_->handle(), source_.data(), bytes, seed * 2 + (isParent_ ? 1 : 0)));
  PEERLANE_RETURN_IF_ERROR(stream_->wait());
  return line_.meet();
}

Result<uint64_t> PortSide::countWrong(uint64_t bytes, uint64_t seed) {
  const GpuSpan span{0, 0, bytes};
  auto* const spans = reinterpret_cast<GpuSpan*>(notes_->data() + kSpanAt);
  if (bytes != 0) {
    PEERLANE_RETURN_IF_ERROR(copyToGpu(*stream_, spans, &span, sizeof span));
    PEERLANE_RETURN_IF_ERROR(countGpuWrong(stream_->handle(), destination_.data(), spans, 1,
                                           seed * 2 + (isParent_ ? 0 : 1), wrong()));
  }
  uint64_t mine = 0, theirs = 0;
  PEERLANE_RETURN_IF_ERROR(copyFromGpu(*stream_, &mine, wrong(), sizeof mine));
  PEERLANE_RETURN_IF_ERROR(setGpuBytes(*stream_, wrong(), 0, sizeof mine));
  PEERLANE_RETURN_IF_ERROR(line_.send(&mine, sizeof mine));
  PEERLANE_RETURN_IF_ERROR(line_.receive(&theirs, sizeof theirs));
  return mine + theirs;
}

Result<Outcome> PortSide::contest(const PortGame& ours, const PortGame& raw, uint64_t iterations,
                                  uint64_t bytes, uint64_t samples) {
  Outcome outcome;
  for (uint64_t sample = 0; sample < kWarmup + samples; ++sample)
    for (const bool first : {true, false}) {
      const bool isOurs = first == (sample % 2 == 0);
      const PortGame& game = isOurs ? ours : raw;
      if (!game.run) continue;
      const uint64_t seed = ++seed_;
      if (bytes != 0) PEERLANE_RETURN_IF_ERROR(fill(bytes, seed));
      PEERLANE_RETURN_IF_ERROR(game.begin());
      PEERLANE_RETURN_IF_ERROR(line_.meet());
      const double start = gpuBenchNow();
      PEERLANE_RETURN_IF_ERROR(game.run());
      const double took = (gpuBenchNow() - start) / static_cast<double>(iterations);
      PEERLANE_RETURN_IF_ERROR(line_.meet());
      PEERLANE_ASSIGN(const uint64_t wrong, countWrong(bytes, seed));
      outcome.wrong += wrong;
      if (sample >= kWarmup) (isOurs ? outcome.ours : outcome.ceiling).add(took);
    }
  return outcome;
}

Result<std::unique_ptr<GpuGraph>> PortSide::graphOf(const std::function<Status()>& enqueue) {
  return GpuGraph::capture(*stream_, [&] {
    for (uint64_t i = 0; i < kPerGraph; ++i) PEERLANE_RETURN_IF_ERROR(enqueue());
    return Status::ok();
  });
}

}  // namespace peerlane::bench
