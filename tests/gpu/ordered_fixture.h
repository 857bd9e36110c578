// SPDX-License-Identifier: Apache-2.0
//
// What tests of programs in their order have: an executor of GPU 0, pinned memory, memory of the
// GPU, and two streams whose work can wait for each other.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "peerlane/os/cuda.h"
#include "peerlane/program/stream/copy/word_abilities.h"
#include "peerlane/program/stream/submit/stream_executor.h"
#include "tests/core/expect_ok.h"

namespace peerlane::gputest {

#define CUDA_OK(call) ASSERT_EQ(cudaSuccess, (call)) << cudaGetErrorString(cudaGetLastError())

class OrderedFixture : public testing::Test {
 protected:
  static constexpr size_t kBytes = size_t{1} << 20;

  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "needs a GPU";
    CUDA_OK(cudaSetDevice(0));
    gpu_ = MUST(cuda::PrimaryContext::retainShared(0));
    executor_ = MUST(
        stream::makeStreamExecutor(gpu_, Config{}, std::make_shared<stream::SharedCounterWords>()));
    abilities_ = MUST(stream::WordAbilities::of(0));
    CUDA_OK(cudaHostAlloc(&pinned_, kBytes, cudaHostAllocPortable | cudaHostAllocMapped));
    CUDA_OK(cudaMalloc(&device_, kBytes));
    std::memset(pinned_, 0, kBytes);
    CUDA_OK(cudaMemset(device_, 0, kBytes));
    // Streams share hardware queues by turns, so the next one has another.
    for (cudaStream_t& stream : streams_)
      CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA_OK(cudaDeviceSynchronize());
  }
  void TearDown() override {
    for (cudaStream_t stream : streams_)
      if (stream != nullptr) (void)cudaStreamDestroy(stream);
    executor_.reset();
    (void)cudaFreeHost(pinned_);
    (void)cudaFree(device_);
  }

  std::byte* pinned(size_t offset = 0) const { return static_cast<std::byte*>(pinned_) + offset; }
  std::byte* device(size_t offset = 0) const { return static_cast<std::byte*>(device_) + offset; }
  static BoundTarget at(std::byte* address, uint64_t bytes = 4096) {
    return {.address = address, .bytes = bytes};
  }
  std::atomic<uint64_t>& word(size_t index) const {
    return *reinterpret_cast<std::atomic<uint64_t>*>(pinned(8 * index));
  }
  std::vector<std::byte> bytesAt(const std::byte* from, size_t bytes) const {
    std::vector<std::byte> found(bytes);
    EXPECT_EQ(cudaSuccess, cudaMemcpy(found.data(), from, bytes, cudaMemcpyDefault));
    return found;
  }

  DeviceStream stream(size_t index = 0) const { return DeviceStream::cuda(streams_[index]); }
  Result<std::unique_ptr<DeviceProgram>> prepare(
      const Program& program, std::vector<BoundTarget> targets,
      const DeviceExecutor::Preferences& preferences = {}) const {
    return executor_->prepare(program, {.targets = std::move(targets)}, preferences);
  }
  DevicePost post(DeviceProgram& program, std::span<const uint64_t> cursors = {},
                  size_t index = 0) const {
    return MUST(executor_->post(program, stream(index), {}, cursors));
  }
  // Until the stream has passed the end of the post, whose program waits.
  void finish(const DevicePost& post, size_t index = 0) const {
    EXPECT_EQ(cudaSuccess, cudaStreamSynchronize(streams_[index]));
    EXPECT_TRUE(post.ended());
    executor_->waitEnded();
  }

  std::shared_ptr<const cuda::PrimaryContext> gpu_;
  std::shared_ptr<DeviceExecutor> executor_;
  stream::WordAbilities abilities_;
  void* pinned_ = nullptr;
  void* device_ = nullptr;
  cudaStream_t streams_[2] = {};
};

}  // namespace peerlane::gputest
