// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/stream/submit/stream_queue.h"

#include <atomic>
#include <deque>
#include <utility>

#include "peerlane/memory/cuda/cuda_reclaimer.h"
#include "peerlane/os/cuda_driver.h"
#include "peerlane/program/stream/copy/word_ops.h"
#include "peerlane/program/stream/submit/relaxed_capture.h"

namespace peerlane::stream {
namespace {

using cuda::api;
using cuda::check;

// A stream takes 1024 pieces of work before a launch blocks; this limit stays far below.
constexpr uint64_t kMostUnderWay = 384;
constexpr uint64_t kOpsPerNote = 32;
// Copies of that many bytes in all take longer than a proxy polls after its work, or nearly: so the
// queue asks to be told of their end. A word more after each shorter one would cost more.
constexpr uint64_t kLongBytes = 4 << 20;

CUdeviceptr deviceAddress(const void* pointer) {
  return reinterpret_cast<CUdeviceptr>(pointer);
}

// Pinned memory: the number of the last piece of work that the stream has passed. Stored by the
// stream; acquire by the queue.
using Passed = std::atomic<uint64_t>;

class StreamQueue final : public PortQueue {
 public:
  explicit StreamQueue(std::shared_ptr<const cuda::PrimaryContext> gpu) : gpu_(std::move(gpu)) {}
  StreamQueue(const StreamQueue&) = delete;
  StreamQueue& operator=(const StreamQueue&) = delete;
  ~StreamQueue() override {
    if (stream_ == nullptr) return;
    // Freeing pinned memory waits for the GPU.
    CudaReclaimer::instance().add(gpu_, [stream = stream_, passed = passed_] {
      (void)cudaStreamDestroy(stream);
      if (passed != nullptr) (void)cudaFreeHost(passed);
    });
  }

  Status open() {
    const cuda::CurrentContext current(*gpu_);
    int least = 0, greatest = 0;
    PEERLANE_RETURN_IF_ERROR(check(cudaDeviceGetStreamPriorityRange(&least, &greatest),
                                   "cudaDeviceGetStreamPriorityRange"));
    PEERLANE_RETURN_IF_ERROR(
        check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest),
              "cudaStreamCreateWithPriority"));
    void* passed = nullptr;
    PEERLANE_RETURN_IF_ERROR(
        check(cudaHostAlloc(&passed, sizeof(Passed), cudaHostAllocPortable | cudaHostAllocMapped),
              "cudaHostAlloc"));
    passed_ = new (passed) Passed(0);
    return Status::ok();
  }

  // After a failure nothing is enqueued, and callers hear of the failure in its place.
  bool hasRoom() override {
    return !failure_.isOk() ||
           enqueued_ - passed_->load(std::memory_order_acquire) + kMostPerRequest <= kMostUnderWay;
  }

  Status copy(const PortAddress& to, const PortAddress& from, uint64_t bytes) override {
    unnotedBytes_ += bytes;
    return enqueue([&] {
      return check(api().cuMemcpyAsync(deviceAddress(to.address), deviceAddress(from.address),
                                       bytes, stream_),
                   "cuMemcpyAsync");
    });
  }

  // The store comes after a fence, so whoever sees it sees the copies.
  Status store(const PortAddress& word, uint64_t value) override {
    return enqueue([&] { return storeWord(stream_, word.address, value); });
  }

  void mark(Mark passed) override { marks_.push_back({enqueued_, std::move(passed)}); }

  // kPending: the stream has not come to the last mark or note yet. kMoved: it has come to one,
  // which is when kernels ask for more.
  Advance advance() override {
    if (!failure_.isOk()) return Advance::kIdle;
    const uint64_t passed = passed_->load(std::memory_order_acquire);
    if (isNoteWanted(passed) && hasRoom()) notePassed();
    if (marks_.empty()) {
      if (std::exchange(seen_, passed) != passed) return Advance::kMoved;
      return passed < noted_ ? Advance::kPending : Advance::kIdle;
    }
    if (passed < marks_.front().position) return Advance::kPending;
    marks_.front().passed->store(true, std::memory_order_release);
    marks_.pop_front();
    return Advance::kMoved;
  }

  bool isIdle() override {
    if (!failure_.isOk()) return true;
    const cuda::CurrentContext current(*gpu_);
    const RelaxedCapture relaxed;
    const cudaError_t state = cudaStreamQuery(stream_);
    if (state == cudaErrorNotReady) return false;
    if (state != cudaSuccess) failure_ = check(state, "cudaStreamQuery");
    return true;
  }

  Status health() override { return failure_; }

 private:
  // One note of long copies at a time: puts in a row have one for all that came meanwhile.
  bool isNoteWanted(uint64_t passed) const {
    if (!marks_.empty()) return noted_ < marks_.back().position;
    return unnotedBytes_ >= kLongBytes && passed >= noted_;
  }
  template <class Enqueue>
  Status enqueue(const Enqueue& call) {
    attempt(call);
    ++enqueued_;
    if (enqueued_ - noted_ >= kOpsPerNote) notePassed();
    return failure_;
  }
  void notePassed() {
    noted_ = ++enqueued_;
    unnotedBytes_ = 0;
    attempt([&] { return storeWord(stream_, passed_, noted_); });
  }
  template <class Call>
  void attempt(const Call& call) {
    if (!failure_.isOk()) return;
    const cuda::CurrentContext current(*gpu_);
    failure_ = call();
  }

  struct Marked {
    uint64_t position = 0;
    Mark passed;
  };
  const std::shared_ptr<const cuda::PrimaryContext> gpu_;
  cudaStream_t stream_ = nullptr;
  Passed* passed_ = nullptr;
  uint64_t enqueued_ = 0;
  uint64_t noted_ = 0;         // `passed_` will reach at least this number
  uint64_t unnotedBytes_ = 0;  // copied since then
  uint64_t seen_ = 0;          // of `passed_`, by advance()
  std::deque<Marked> marks_;
  Status failure_;
};

}  // namespace

Result<std::unique_ptr<PortQueue>> makeStreamQueue(
    std::shared_ptr<const cuda::PrimaryContext> gpu) {
  auto queue = std::make_unique<StreamQueue>(std::move(gpu));
  PEERLANE_RETURN_IF_ERROR(queue->open());
  return std::unique_ptr<PortQueue>(std::move(queue));
}

}  // namespace peerlane::stream
