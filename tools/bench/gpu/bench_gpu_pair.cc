// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/gpu/bench_gpu_pair.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "tools/bench/gpu/bench_gpu_child.h"

namespace peerlane::bench {
namespace {

// Setting up takes longer than a sample: CUDA wakes up, large memory is made.
constexpr int kSetUpFactor = 3;

}  // namespace

Result<std::vector<int>> chooseGpus(const std::vector<int>& wanted) {
  PEERLANE_ASSIGN(const int count, countGpus());
  for (const int gpu : wanted)
    if (gpu < 0 || gpu >= count)
      return Status(Code::kInvalidArgument, "--device names GPU " + std::to_string(gpu) +
                                                "; there are 0 to " + std::to_string(count - 1));
  if (wanted.size() == 2) return wanted;
  if (wanted.size() == 1) return std::vector<int>{wanted[0], wanted[0]};
  return std::vector<int>{0, count > 1 ? 1 : 0};
}

Result<std::unique_ptr<GpuPair>> GpuPair::create(const std::vector<int>& gpus, bool byCudaMalloc,
                                                 const std::string& link, uint64_t regionBytes) {
  std::unique_ptr<GpuPair> pair(new GpuPair());
  PEERLANE_RETURN_IF_ERROR(pair->spawn());
  // Only now is CUDA touched.
  PEERLANE_ASSIGN(const std::vector<int> chosen, chooseGpus(gpus));
  constexpr uint64_t kGranule = 2 << 20;
  pair->setup_ = {.isParent = true,
                  .byCudaMalloc = byCudaMalloc,
                  .gpu = chosen[0],
                  .otherGpu = chosen[1],
                  .regionBytes = (regionBytes + kGranule - 1) / kGranule * kGranule};
  link.copy(pair->setup_.link.data(), pair->setup_.link.size() - 1);
  PEERLANE_RETURN_IF_ERROR(pair->meet());
  return pair;
}

GpuPair::~GpuPair() {
  if (pipe_ == nullptr) return;
  // In this order nobody frees memory that the other one has mapped. A child that does not answer
  // is killed below.
  if (side_ != nullptr) side_->letGoOfOther();
  if (pipe_->send(kGpuEnd).isOk()) (void)pipe_->receive(kReady);
  side_.reset();
  pipe_.reset();  // the child ends when its pipe does
  const auto deadline = std::chrono::steady_clock::now() + kGpuPatience;
  while (child_ != nullptr && child_->running().isOk() &&
         std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

Status GpuPair::spawn() {
  PEERLANE_ASSIGN(auto ends, BenchPipe::makePair());
  pipe_ = std::make_unique<GpuPipe>(std::move(ends.first));
  const int number = ends.second.get();
  if (::fcntl(number, F_SETFD, 0) != 0) return Status::system(errno, "the benchmark's pipe");
  PEERLANE_ASSIGN(child_, SpawnedProcess::create({kGpuChildCommand, std::to_string(number)}));
  return Status::ok();
}

Status GpuPair::meet() {
  PEERLANE_ASSIGN(const Descriptor desk, makeSharedFile("bench-gpu-desk", GpuDesk::kBytes));
  GpuSetup other = setup_;
  other.isParent = false;
  std::swap(other.gpu, other.otherGpu);
  const int deskNumber = desk.get();
  PEERLANE_RETURN_IF_ERROR(pipe_->plain().send(kGpuSetup, other, {&deskNumber, 1}));
  PEERLANE_ASSIGN(side_, GpuSide::create(setup_, desk));
  PEERLANE_RETURN_IF_ERROR(pipe_->receive(kReady, kSetUpFactor).status());

  // One after the other, so that each one's memory can be told from the other's.
  PEERLANE_ASSIGN(const uint64_t before, usedBytes());
  PEERLANE_RETURN_IF_ERROR(side_->makeContext());
  PEERLANE_ASSIGN(const uint64_t between, usedBytes());
  PEERLANE_RETURN_IF_ERROR(pipe_->send(kGpuMakeContext));
  PEERLANE_ASSIGN(const BenchMessage ticket, pipe_->receive(kTicketIs, kSetUpFactor));
  childTicket_.assign(reinterpret_cast<const char*>(ticket.content.data()), ticket.content.size());
  PEERLANE_ASSIGN(const uint64_t after, usedBytes());
  footprint_.parentContext = static_cast<double>(between) - static_cast<double>(before);
  footprint_.childContext = static_cast<double>(after) - static_cast<double>(between);

  PEERLANE_ASSIGN(const Peer peer, side_->context().connect(childTicket_, kGpuPatience));
  PEERLANE_RETURN_IF_ERROR(pipe_->send(kGpuMakeRegions));
  PEERLANE_RETURN_IF_ERROR(side_->exportRegions(*pipe_));
  PEERLANE_RETURN_IF_ERROR(side_->importRegions(*pipe_, peer));
  return pipe_->receive(kReady, kSetUpFactor).status();
}

std::string GpuPair::link() const {
  const Route route = side_->peer().route();
  return route.deviceEngine.empty() ? route.link : "cuda_ipc";
}

Status GpuPair::fillOther(uint64_t bytes, uint64_t seed) {
  PEERLANE_RETURN_IF_ERROR(pipe_->send(kGpuFill, FillRequest{true, bytes, seed}));
  return pipe_->receive(kReady).status();
}

Status GpuPair::poisonOther(uint64_t bytes) {
  PEERLANE_RETURN_IF_ERROR(pipe_->send(kGpuPoison, bytes));
  return pipe_->receive(kReady).status();
}

Result<uint64_t> GpuPair::verifyOther(uint64_t seed, std::span<const GpuSpan> spans) {
  std::vector<std::byte> content(sizeof(seed) + spans.size_bytes());
  std::memcpy(content.data(), &seed, sizeof(seed));
  std::memcpy(content.data() + sizeof(seed), spans.data(), spans.size_bytes());
  PEERLANE_RETURN_IF_ERROR(pipe_->plain().send(kGpuVerify, content));
  PEERLANE_ASSIGN(const BenchMessage answer, pipe_->receive(kWrongIs));
  return answer.as<uint64_t>();
}

Result<uint64_t> GpuPair::usedBytes() {
  PEERLANE_RETURN_IF_ERROR(pipe_->send(kGpuUsed));
  PEERLANE_ASSIGN(const BenchMessage answer, pipe_->receive(kGpuNumberIs));
  PEERLANE_ASSIGN(const uint64_t there, answer.as<uint64_t>());
  if (isOneGpu()) return there;
  PEERLANE_ASSIGN(const uint64_t here, usedGpuBytes());
  return here + there;
}

Status GpuPair::awaitArmed(uint64_t number) {
  const std::atomic<uint64_t>& armed = side_->desk().armed;
  Status waited = spinUntil([&] { return armed.load(std::memory_order_acquire) >= number; },
                            [&] { return pipe_->readable(); }, "the other process getting ready");
  if (waited.code() != Code::kCancelled) return waited;
  // It answered without having looked: with an error, or because it ended.
  answerIsDue_ = false;
  PEERLANE_RETURN_IF_ERROR(pipe_->receive(kGpuSeen).status());
  return Status(Code::kInternal, "the other process saw its word before anything was posted");
}

Result<double> GpuPair::seenByChild() {
  PEERLANE_ASSIGN(const BenchMessage answer, pipe_->receive(kGpuSeen, 2));
  return answer.as<double>();
}

Result<double> GpuPair::samplePut(GpuCopy& copy, Contender who) {
  const bool ours = who == Contender::kOurs;
  uint64_t& count = ours ? signals_ : flags_;
  const uint64_t first = count + 1;
  count += copy.what().window;
  PEERLANE_RETURN_IF_ERROR(pipe_->send(kGpuWatch, WatchRequest{nextNumber(), ours, count}));
  answerIsDue_ = true;
  PEERLANE_RETURN_IF_ERROR(awaitArmed(number_));
  const double start = gpuBenchNow();
  PEERLANE_RETURN_IF_ERROR(copy.post(who, first));
  PEERLANE_RETURN_IF_ERROR(copy.wait(who, count));
  answerIsDue_ = false;
  PEERLANE_ASSIGN(const double seen, seenByChild());
  return seen - start;
}

Result<double> GpuPair::sampleGet(GpuCopy& copy, Contender who) {
  const uint64_t first = flags_ + 1;
  if (who == Contender::kCeiling) flags_ += copy.what().window;
  const double start = gpuBenchNow();
  PEERLANE_RETURN_IF_ERROR(copy.post(who, first));
  PEERLANE_RETURN_IF_ERROR(copy.wait(who, flags_));
  return gpuBenchNow() - start;
}

Result<double> GpuPair::sampleBothWays(GpuCopy& copy, Contender who) {
  const bool ours = who == Contender::kOurs;
  uint64_t& out = ours ? signals_ : flags_;
  uint64_t& back = ours ? signalsBack_ : flagsBack_;
  ++out;
  ++back;
  const PushRequest request{{nextNumber(), ours, out}, copy.what().blockBytes, flagsBack_};
  PEERLANE_RETURN_IF_ERROR(pipe_->send(kGpuPush, request));
  answerIsDue_ = true;
  PEERLANE_RETURN_IF_ERROR(awaitArmed(number_));
  const double start = gpuBenchNow();
  side_->desk().go.store(number_, std::memory_order_release);
  PEERLANE_RETURN_IF_ERROR(copy.post(who, out));
  PEERLANE_RETURN_IF_ERROR(spinUntil(
      [&] {
        return (ours ? side_->signal().value() : side_->flagIn().load(std::memory_order_acquire)) >=
               back;
      },
      [&] { return !child_->running().isOk(); }, "the other process's put"));
  const double here = gpuBenchNow();
  PEERLANE_RETURN_IF_ERROR(copy.wait(who, out));
  answerIsDue_ = false;
  PEERLANE_ASSIGN(const double there, seenByChild());
  return std::max(here, there) - start;
}

Result<double> GpuPair::sample(GpuCopy& copy, Contender who) {
  if (copy.what().bothWays) return sampleBothWays(copy, who);
  return copy.what().isPut ? samplePut(copy, who) : sampleGet(copy, who);
}

Status GpuPair::recover() {
  side_->desk().abandon.store(number_, std::memory_order_release);
  if (answerIsDue_) {
    // Either answer will do.
    auto answer = pipe_->receive(kGpuSeen, 2);
    if (!answer.isOk() && answer.status().code() != Code::kInternal) return answer.status();
    answerIsDue_ = false;
  }
  PEERLANE_RETURN_IF_ERROR(side_->stream().wait());
  PEERLANE_RETURN_IF_ERROR(pipe_->send(kGpuCounts));
  PEERLANE_ASSIGN(const BenchMessage answer, pipe_->receive(kGpuCountsAre, 2));
  PEERLANE_ASSIGN(const GpuCounts counts, answer.as<GpuCounts>());
  signals_ = counts.signals;
  flags_ = side_->desk().toChild.load(std::memory_order_acquire);
  signalsBack_ = side_->signal().value();
  flagsBack_ = side_->desk().toParent.load(std::memory_order_acquire);
  return Status::ok();
}

}  // namespace peerlane::bench
