// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/gpu/bench_gpu_side.h"

#include <array>
#include <utility>

#include "tools/ceiling/ceiling_cuda.h"

namespace peerlane::bench {
namespace {

constexpr uint64_t kWordsBytes = 4096;

}  // namespace

struct GpuSide::Exported {
  std::array<RegionReference::Encoded, 2> references;  // source, destination
  RegionReference::Encoded doorstep;
  std::array<RawShare, 2> raw;
};

Result<std::unique_ptr<GpuSide>> GpuSide::create(const GpuSetup& setup, const Descriptor& desk) {
  std::unique_ptr<GpuSide> side(new GpuSide());
  side->setup_ = setup;
  PEERLANE_ASSIGN(side->model_, useGpu(setup.gpu));
  PEERLANE_RETURN_IF_ERROR(loadGpuPatterns());
  PEERLANE_RETURN_IF_ERROR(prepareGpuCeilings());
  PEERLANE_ASSIGN(side->stream_, GpuStream::create());
  PEERLANE_ASSIGN(side->words_, GpuBuffer::create(kWordsBytes));
  PEERLANE_ASSIGN(side->deskPages_, RawMapping::create(desk.get(), 0, GpuDesk::kBytes));
  PEERLANE_ASSIGN(side->pinned_, PinnedPages::create(side->deskPages_->data(), GpuDesk::kBytes));
  return side;
}

GpuSide::~GpuSide() {
  letGoOfOther();
  if (stream_ != nullptr) (void)stream_->wait();
}

void GpuSide::letGoOfOther() {
  otherSource_ = {};
  otherDestination_ = {};
}

Status GpuSide::makeContext() {
  ContextOptions options;
  options.devices = {device()};
  if (setup_.link[0] != '\0') {
    PEERLANE_ASSIGN(options.config, Config::fromEnvironment());
    options.config->links = {setup_.link.data()};
  }
  PEERLANE_ASSIGN(context_, Context::create(std::move(options)));
  return Status::ok();
}

Result<Region> GpuSide::makeRegion() {
  const uint64_t bytes = setup_.regionBytes + kGameBytes;
  if (!setup_.byCudaMalloc) {
    MemoryOptions options;
    options.device = device();
    return context_->allocate(bytes, options);
  }
  PEERLANE_ASSIGN(auto memory, GpuBuffer::create(bytes));
  std::byte* const data = memory->data();
  memory_.push_back(std::move(memory));
  return context_->registerRegion(data, bytes, Access::kRemoteReadWrite);
}

Status GpuSide::exportRegions(GpuPipe& pipe) {
  PEERLANE_ASSIGN(source_, makeRegion());
  PEERLANE_ASSIGN(destination_, makeRegion());
  MemoryOptions small;
  small.device = device();
  PEERLANE_ASSIGN(doorstep_, context_->allocate(kDoorstepBytes, small));
  Exported exported{};
  exported.doorstep = doorstep_.share();
  std::vector<Descriptor> files;
  std::vector<int> numbers;
  for (size_t i = 0; i < 2; ++i) {
    const Region& region = i == 0 ? source_ : destination_;
    exported.references[i] = region.share();
    Descriptor file;
    PEERLANE_ASSIGN(exported.raw[i], shareGpuMemory(region.data(), file));
    if (!file) continue;
    numbers.push_back(file.get());
    files.push_back(std::move(file));
  }
  return pipe.plain().send(kRegions, exported, numbers);
}

Status GpuSide::importRegions(GpuPipe& pipe, const Peer& peer) {
  peer_ = peer;
  PEERLANE_ASSIGN(const Signal signal, Signal::create(peer, 0));
  signal_ = signal;
  PEERLANE_ASSIGN(const BenchMessage message, pipe.receive(kRegions));
  PEERLANE_ASSIGN(const Exported exported, message.as<Exported>());
  otherDoorstep_ = exported.doorstep;
  size_t nextFile = 0;
  for (size_t i = 0; i < 2; ++i) {
    Other& other = i == 0 ? otherSource_ : otherDestination_;
    PEERLANE_ASSIGN(other.remote, peer.importRegion(exported.references[i]));
    PEERLANE_RETURN_IF_ERROR(other.remote.prepare());
    int file = -1;
    if (exported.raw[i].byDescriptor) {
      if (nextFile == message.descriptors.size())
        return Status(Code::kInternal, "a descriptor of the other process's memory is missing");
      file = message.descriptors[nextFile++].get();
    }
    PEERLANE_ASSIGN(other.raw, RawWindow::open(exported.raw[i], file, setup_.gpu));
  }
  return Status::ok();
}

uint64_t* GpuSide::flagOut() {
  GpuDesk& shared = desk();
  return static_cast<uint64_t*>(
      pinned_->onGpu(setup_.isParent ? &shared.toChild : &shared.toParent));
}

std::atomic<uint64_t>& GpuSide::flagIn() {
  return setup_.isParent ? desk().toParent : desk().toChild;
}

Status GpuSide::fill(bool isSource, uint64_t bytes, uint64_t seed) {
  const Region& region = isSource ? source_ : destination_;
  PEERLANE_RETURN_IF_ERROR(fillGpuPattern(stream_->handle(), region.data(), bytes, seed));
  return stream_->wait();
}

Status GpuSide::poison(uint64_t bytes) {
  return setGpuBytes(*stream_, destination_.data(), 0xa7, bytes);
}

Result<uint64_t> GpuSide::countWrong(uint64_t seed, std::span<const GpuSpan> spans) {
  constexpr uint64_t kResultBytes = 64;  // the count, then the list
  const uint64_t needed = kResultBytes + spans.size_bytes();
  if (spans_ == nullptr || spans_->bytes() < needed) {
    spans_.reset();
    PEERLANE_ASSIGN(spans_, GpuBuffer::create(needed));
  }
  auto* const result = reinterpret_cast<uint64_t*>(spans_->data());
  auto* const list = reinterpret_cast<GpuSpan*>(spans_->data() + kResultBytes);
  PEERLANE_RETURN_IF_ERROR(setGpuBytes(*stream_, result, 0, sizeof(uint64_t)));
  PEERLANE_RETURN_IF_ERROR(copyToGpu(*stream_, list, spans.data(), spans.size_bytes()));
  PEERLANE_RETURN_IF_ERROR(
      countGpuWrong(stream_->handle(), destination_.data(), list, spans.size(), seed, result));
  PEERLANE_RETURN_IF_ERROR(stream_->wait());
  uint64_t wrong = 0;
  PEERLANE_RETURN_IF_ERROR(copyFromGpu(*stream_, &wrong, result, sizeof(wrong)));
  return wrong;
}

}  // namespace peerlane::bench
