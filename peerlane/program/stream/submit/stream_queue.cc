// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/stream/submit/stream_queue.h"

#include <atomic>
#include <cstring>
#include <deque>
#include <utility>

#include "peerlane/memory/cuda/cuda_reclaimer.h"
#include "peerlane/os/cuda_driver.h"

namespace peerlane::stream {
namespace {

using cuda::api;
using cuda::check;

// A stream takes 1024 pieces of work before a launch blocks; this limit stays far below.
constexpr uint64_t kMostUnderWay = 384;
constexpr uint64_t kValues = 512;
constexpr uint64_t kOpsPerNote = 32;
// Copies of that many bytes in all take longer than a proxy polls after its work, or nearly: so the
// queue asks to be told of their end. Two small copies after each shorter one would cost more.
constexpr uint64_t kLongBytes = 4 << 20;
static_assert(kValues > kMostUnderWay + kMostUnderWay / kOpsPerNote + PortQueue::kMostPerRequest,
              "a value is not written while a copy may still read it");

CUdeviceptr deviceAddress(const void* pointer) {
  return reinterpret_cast<CUdeviceptr>(pointer);
}

// Pinned memory: the values, and after them the number of the last copy that the stream has passed.
struct Values {
  uint64_t values[kValues];
  alignas(64) std::atomic<uint64_t> passed;  // copied here by the stream; acquire by the queue
};

class StreamQueue final : public PortQueue {
 public:
  explicit StreamQueue(std::shared_ptr<const cuda::PrimaryContext> gpu) : gpu_(std::move(gpu)) {}
  StreamQueue(const StreamQueue&) = delete;
  StreamQueue& operator=(const StreamQueue&) = delete;
  ~StreamQueue() override {
    if (stream_ == nullptr) return;
    // Freeing pinned memory waits for the GPU.
    CudaReclaimer::instance().add(gpu_, [stream = stream_, values = values_, relay = relay_] {
      (void)cudaStreamDestroy(stream);
      if (relay != nullptr) (void)cudaFree(relay);
      if (values != nullptr) (void)cudaFreeHost(values);
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
    void* values = nullptr;
    PEERLANE_RETURN_IF_ERROR(
        check(cudaHostAlloc(&values, sizeof(Values), cudaHostAllocPortable | cudaHostAllocMapped),
              "cudaHostAlloc"));
    std::memset(values, 0, sizeof(Values));
    values_ = static_cast<Values*>(values);
    return check(cudaMalloc(&relay_, sizeof(uint64_t)), "cudaMalloc");
  }

  bool hasRoom() override {
    return enqueued_ - values_->passed.load(std::memory_order_acquire) + kMostPerRequest <=
           kMostUnderWay;
  }

  Status copy(const PortAddress& to, const PortAddress& from, uint64_t bytes) override {
    unnotedBytes_ += bytes;
    return enqueue(to.address, from.address, bytes);
  }

  Status store(const PortAddress& word, uint64_t value) override {
    uint64_t* const slot = &values_->values[enqueued_ % kValues];
    *slot = value;
    return enqueue(word.address, slot, sizeof(uint64_t));
  }

  void mark(Mark passed) override { marks_.push_back({enqueued_, std::move(passed)}); }

  // kPending: the stream has not come to the last mark or note yet. kMoved: it has come to one,
  // which is when kernels ask for more.
  Advance advance() override {
    if (!failure_.isOk()) return Advance::kIdle;
    const uint64_t passed = values_->passed.load(std::memory_order_acquire);
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
  Status enqueue(void* to, const void* from, uint64_t bytes) {
    copyNow(to, from, bytes);
    ++enqueued_;
    if (enqueued_ - noted_ >= kOpsPerNote) notePassed();
    return failure_;
  }
  void copyNow(void* to, const void* from, uint64_t bytes) {
    if (!failure_.isOk()) return;
    const cuda::CurrentContext current(*gpu_);
    failure_ = check(api().cuMemcpyAsync(deviceAddress(to), deviceAddress(from), bytes, stream_),
                     "cuMemcpyAsync");
  }
  // By copies as well, and by way of the device, because the driver chooses by which engine and
  // when it copies from host to host. A stream memory operation (cuStreamWriteValue64) would wait
  // for a kernel that waits, where both have one hardware queue, and so would all copies after it.
  void notePassed() {
    uint64_t* const slot = &values_->values[enqueued_ % kValues];
    *slot = noted_ = enqueued_;
    unnotedBytes_ = 0;
    ++enqueued_;
    copyNow(relay_, slot, sizeof(uint64_t));
    copyNow(&values_->passed, relay_, sizeof(uint64_t));
  }

  struct Marked {
    uint64_t position = 0;
    Mark passed;
  };
  const std::shared_ptr<const cuda::PrimaryContext> gpu_;
  cudaStream_t stream_ = nullptr;
  Values* values_ = nullptr;
  void* relay_ = nullptr;  // a word in the device's memory
  uint64_t enqueued_ = 0;
  uint64_t noted_ = 0;         // `passed` will reach at least this number
  uint64_t unnotedBytes_ = 0;  // copied since then
  uint64_t seen_ = 0;          // of `passed`, by advance()
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
