// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/gpu/bench_gpu_copy.h"

#include <algorithm>
#include <numeric>

namespace peerlane::bench {

const char* gpuRawName(GpuRaw raw) {
  switch (raw) {
    case GpuRaw::kCopyEngine: return "copy engine";
    case GpuRaw::kKernel: return "copy kernel";
    case GpuRaw::kGather: return "gather kernel";
    case GpuRaw::kBatch: return "batched copy engine";
  }
  return "unknown";
}

GpuRaw contiguousRaw(bool isPut, uint64_t bytes) {
  constexpr uint64_t kLongRead = 32 << 20;
  return isPut || bytes >= kLongRead ? GpuRaw::kCopyEngine : GpuRaw::kKernel;
}

Status waitForAll(std::span<const Transfer> transfers) {
  const auto deadline = std::chrono::steady_clock::now() + kGpuPatience;
  Status first;
  for (const Transfer& transfer : transfers) {
    const auto left = deadline - std::chrono::steady_clock::now();
    const Status ended = transfer.wait(std::max<std::chrono::nanoseconds>(left, {}));
    if (first.isOk()) first = ended;
  }
  return first;
}

GpuCopy::GpuCopy(GpuSide& side, const GpuCase& what) : side_(side), what_(what) {
  places_ = isList() ? what_.blocks
                     : std::clamp<uint64_t>(side_.setup().regionBytes / what_.stride(), 1,
                                            std::max<uint64_t>(what_.window, 1));
  localPlace_.resize(places_);
  std::iota(localPlace_.begin(), localPlace_.end(), 0u);
  otherPlace_ = localPlace_;
}

Status GpuCopy::begin(bool withCeiling) {
  PEERLANE_RETURN_IF_ERROR(place(withCeiling));
  return makePlans();
}

Status GpuCopy::place(bool withCeiling) {
  withCeiling_ = withCeiling;
  if (span() > side_.setup().regionBytes)
    return Status(Code::kInvalidArgument, "a row of " + std::to_string(span()) +
                                              " bytes in regions of " +
                                              std::to_string(side_.setup().regionBytes));
  if (isList()) {
    std::shuffle(localPlace_.begin(), localPlace_.end(), random_);
    std::shuffle(otherPlace_.begin(), otherPlace_.end(), random_);
  }
  takePlaces();
  return withCeiling_ ? uploadRaw() : Status::ok();
}

void GpuCopy::takePlaces() {
  blocks_.clear();
  pieces_.clear();
  for (uint64_t i = 0; i < places_; ++i) {
    blocks_.push_back(blockAt(localPlace_[i], otherPlace_[i]));
    pieces_.push_back(pieceAt(localPlace_[i], otherPlace_[i]));
  }
}

Block GpuCopy::blockAt(uint64_t local, uint64_t remote) const {
  return {&this->local(), what_.offsetOf(local), &other().remote, what_.offsetOf(remote),
          what_.bytesOf(local)};
}

GpuPiece GpuCopy::pieceAt(uint64_t local, uint64_t remote) const {
  std::byte* const here = this->local().data() + what_.offsetOf(local);
  std::byte* const there = other().raw->data() + what_.offsetOf(remote);
  if (what_.isPut) return {here, there, what_.bytesOf(local)};
  return {there, here, what_.bytesOf(local)};
}

Status GpuCopy::makePlans() {
  PlanOptions options;
  if (what_.isPut) options.signal = 0;
  options.engine = what_.engine;
  options.ctas = what_.ctas;
  const Direction direction = what_.isPut ? Direction::kPut : Direction::kGet;
  if (isIndexed()) {
    const IndexedBlocks layout{.local = &local(),
                               .localStride = what_.stride(),
                               .localCount = places_,
                               .remote = &other().remote,
                               .remoteStride = what_.stride(),
                               .remoteCount = places_,
                               .blockBytes = what_.blockBytes,
                               .maxBlocksPerPost = places_};
    PEERLANE_ASSIGN(Plan plan, Plan::create(side_.peer(), direction, layout, options));
    plans_.push_back(std::move(plan));
    return uploadNumbers();
  }
  if (what_.posting != GpuPosting::kPlan) return Status::ok();
  const std::span all(blocks_);
  for (uint64_t i = 0; i < (isList() ? 1 : places_); ++i) {
    PEERLANE_ASSIGN(Plan plan, Plan::create(side_.peer(), direction,
                                            isList() ? all : all.subspan(i, 1), options));
    plans_.push_back(std::move(plan));
  }
  return Status::ok();
}

Status GpuCopy::uploadRaw() {
  if (what_.raw == GpuRaw::kBatch) batch_ = GpuBatch(pieces_);
  if (what_.raw != GpuRaw::kGather) return Status::ok();
  const uint64_t bytes = pieces_.size() * sizeof(GpuPiece);
  if (list_ == nullptr) {
    PEERLANE_ASSIGN(list_, GpuBuffer::create(bytes));
  }
  return copyToGpu(side_.stream(), list_->data(), pieces_.data(), bytes);
}

Status GpuCopy::uploadNumbers() {
  if (what_.posting != GpuPosting::kDeviceIndexed) return Status::ok();
  const uint64_t bytes = places_ * sizeof(uint32_t);
  if (numbers_ == nullptr) {
    PEERLANE_ASSIGN(numbers_, GpuBuffer::create(2 * bytes));
  }
  PEERLANE_RETURN_IF_ERROR(copyToGpu(side_.stream(), numbers_->data(), localPlace_.data(), bytes));
  return copyToGpu(side_.stream(), numbers_->data() + bytes, otherPlace_.data(), bytes);
}

Status GpuCopy::shuffle() {
  if (!isIndexed() && !(isList() && what_.posting == GpuPosting::kCall)) return Status::ok();
  std::shuffle(localPlace_.begin(), localPlace_.end(), random_);
  std::shuffle(otherPlace_.begin(), otherPlace_.end(), random_);
  takePlaces();
  PEERLANE_RETURN_IF_ERROR(uploadNumbers());
  return withCeiling_ ? uploadRaw() : Status::ok();
}

Result<Transfer> GpuCopy::postOnce(uint64_t message) {
  const uint64_t place = message % places_;
  const DeviceStream stream = what_.unordered ? DeviceStream() : side_.deviceStream();
  if (what_.posting == GpuPosting::kPlan) return plans_[isList() ? 0 : place].post(stream);
  if (what_.posting == GpuPosting::kIndexed)
    return plans_[0].post(localPlace_, otherPlace_, stream);
  if (what_.posting == GpuPosting::kDeviceIndexed) {
    const auto* const numbers = reinterpret_cast<const uint32_t*>(numbers_->data());
    return plans_[0].post({.local = numbers, .remote = numbers + places_, .count = places_},
                          stream);
  }
  PostOptions options;
  if (what_.isPut) options.notify.signal = 0;
  options.deviceStream = stream;
  options.engine = what_.engine;
  options.ctas = what_.ctas;
  const std::span all(blocks_);
  const auto blocks = isList() ? all : all.subspan(place, 1);
  return what_.isPut ? put(side_.peer(), blocks, options) : get(side_.peer(), blocks, options);
}

Status GpuCopy::postOne(uint64_t message) {
  const auto deadline = std::chrono::steady_clock::now() + kGpuPatience;
  for (;;) {
    auto posted = postOnce(message);
    if (posted.isOk()) {
      transfers_.push_back(std::move(posted).value());
      return Status::ok();
    }
    if (posted.status().code() != Code::kTryAgain || std::chrono::steady_clock::now() > deadline)
      return posted.status();
  }
}

Status GpuCopy::postRaw(uint64_t message, GpuFlag flag) {
  void* const stream = side_.stream().handle();
  const GpuPiece& piece = pieces_[message % places_];
  const auto most = static_cast<uint32_t>(side_.model().multiprocessors);
  const GpuKernel kernel{what_.rawCtas != 0 ? what_.rawCtas : most, side_.counter()};
  switch (what_.raw) {
    case GpuRaw::kCopyEngine:
      return gpuCopyEngine(stream, isList() ? std::span(pieces_) : std::span(&piece, 1), flag);
    case GpuRaw::kKernel: return gpuKernelCopy(stream, kernel, piece, flag);
    case GpuRaw::kGather:
      return gpuKernelGather(stream, kernel, reinterpret_cast<const GpuPiece*>(list_->data()),
                             pieces_.size(), 1, flag);
    case GpuRaw::kBatch: return gpuCopyBatch(stream, batch_, flag);
  }
  return Status(Code::kInternal, "an unknown raw copy");
}

Status GpuCopy::post(Contender who, uint64_t first) {
  transfers_.reserve(what_.window);
  const double rested = gpuBenchNow() + static_cast<double>(what_.rest.count());
  while (gpuBenchNow() < rested) {
  }
  const double start = gpuBenchNow();
  for (uint64_t i = 0; i < what_.window; ++i)
    PEERLANE_RETURN_IF_ERROR(who == Contender::kOurs ? postOne(i)
                                                     : postRaw(i, {side_.flagOut(), first + i}));
  posting_ = (gpuBenchNow() - start) / static_cast<double>(what_.window);
  return Status::ok();
}

Status GpuCopy::wait(Contender who, uint64_t last) {
  if (who == Contender::kOurs) {
    Status ended = waitForAll(transfers_);
    transfers_.clear();
    return ended;
  }
  if (what_.isPut) return side_.stream().wait();
  return spinUntil([&] { return side_.desk().toChild.load(std::memory_order_acquire) >= last; },
                   [] { return false; }, "the flag of a raw get");
}

std::vector<GpuSpan> GpuCopy::spans() const {
  std::vector<GpuSpan> all;
  for (uint64_t i = 0; i < places_; ++i) {
    const uint64_t here = what_.offsetOf(localPlace_[i]);
    const uint64_t there = what_.offsetOf(otherPlace_[i]);
    all.push_back(
        {what_.isPut ? there : here, what_.isPut ? here : there, what_.bytesOf(localPlace_[i])});
  }
  return all;
}

}  // namespace peerlane::bench
