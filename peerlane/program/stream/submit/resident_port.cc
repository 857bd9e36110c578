// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/stream/submit/resident_port.h"

#include <utility>

#include "peerlane/memory/cuda/cuda_reclaimer.h"
#include "peerlane/os/cuda_driver.h"
#include "peerlane/program/kernel/resident/resident_kernel.h"

namespace peerlane::stream {
namespace {

using cuda::check;

// Nanoseconds. A call that waits for the whole GPU waits for at most kLongest, and then for the
// next launch only if a kernel has asked for one in the meantime.
constexpr uint64_t kIdle = 200'000;
constexpr uint64_t kLongest = 20'000'000;
constexpr uint64_t kPatience = 200'000;

class StreamResidentPort final : public ResidentPort {
 public:
  StreamResidentPort(std::shared_ptr<const cuda::PrimaryContext> gpu, port::ResidentState* state,
                     uint64_t* left, uint32_t blocks)
      : gpu_(std::move(gpu)), state_(state), left_(left), blocks_(blocks) {}
  StreamResidentPort(const StreamResidentPort&) = delete;
  StreamResidentPort& operator=(const StreamResidentPort&) = delete;
  ~StreamResidentPort() override {
    if (stream_ != nullptr)
      CudaReclaimer::instance().add(gpu_, [stream = stream_] { (void)cudaStreamDestroy(stream); });
  }

  Status open() {
    const cuda::CurrentContext current(*gpu_);
    int least = 0, greatest = 0;
    PEERLANE_RETURN_IF_ERROR(check(cudaDeviceGetStreamPriorityRange(&least, &greatest),
                                   "cudaDeviceGetStreamPriorityRange"));
    return check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest),
                 "cudaStreamCreateWithPriority");
  }

  using ResidentPort::hasLeft;
  bool hasLeft(uint64_t launch) const override { return port::loadAcquire(left_) >= launch; }
  uint64_t launches() const override { return launches_; }

  Status launch() override {
    const cuda::CurrentContext current(*gpu_);
    Status launched = kernel::launchResident({.job = {.state = state_,
                                                      .left = left_,
                                                      .launch = launches_ + 1,
                                                      .idle = kIdle,
                                                      .longest = kLongest,
                                                      .patience = kPatience},
                                              .blocks = blocks_,
                                              .stream = stream_});
    if (launched.isOk()) ++launches_;
    return launched;
  }

 private:
  const std::shared_ptr<const cuda::PrimaryContext> gpu_;
  port::ResidentState* const state_;
  uint64_t* const left_;
  const uint32_t blocks_;
  cudaStream_t stream_ = nullptr;
  uint64_t launches_ = 0;
};

}  // namespace

Result<std::unique_ptr<ResidentPort>> makeResidentPort(
    std::shared_ptr<const cuda::PrimaryContext> gpu, port::ResidentState* state, uint64_t* left,
    uint32_t blocks) {
  auto made = std::make_unique<StreamResidentPort>(std::move(gpu), state, left, blocks);
  PEERLANE_RETURN_IF_ERROR(made->open());
  return std::unique_ptr<ResidentPort>(std::move(made));
}

}  // namespace peerlane::stream
