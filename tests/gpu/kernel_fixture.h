// SPDX-License-Identifier: Apache-2.0
//
// What tests of message kernels have. KernelFixture: memory of GPU 0 and of the far GPU, pinned
// memory, a stream for kernels, and one for copies while a kernel waits. MessageKernelFixture:
// words in the pinned memory by which a kernel is ended, ends and reports a fault. The parameter is
// the far GPU; 0: the same one.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "peerlane/core/status.h"
#include "peerlane/program/kernel/message/named_region.h"
#include "tests/core/expect_ok.h"

namespace peerlane::kernel {

#define CUDA_OK(call) ASSERT_EQ(cudaSuccess, (call)) << cudaGetErrorString(cudaGetLastError())

// Of a device's memory it is over before the next launch; cudaMemset may only have begun.
inline cudaError_t setNow(void* to, int value, size_t bytes) {
  const cudaError_t begun = cudaMemset(to, value, bytes);
  return begun == cudaSuccess ? cudaStreamSynchronize(nullptr) : begun;
}

class KernelFixture : public testing::TestWithParam<int> {
 protected:
  // `bytes` of each GPU.
  KernelFixture(size_t bytes, size_t pinnedBytes) : bytes_(bytes), pinnedBytes_(pinnedBytes) {}
  // Loads the kernels of the test; GPU 0 is the current one.
  virtual Status load() = 0;

  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count <= GetParam())
      GTEST_SKIP() << "needs " << GetParam() + 1 << " GPUs";
    if (GetParam() != 0) {
      int possible = 0;
      for (const int device : {0, GetParam()}) {
        CUDA_OK(cudaDeviceCanAccessPeer(&possible, device, GetParam() - device));
        if (possible == 0) GTEST_SKIP() << "needs GPUs that reach each other";
        CUDA_OK(cudaSetDevice(device));
        const cudaError_t error = cudaDeviceEnablePeerAccess(GetParam() - device, 0);
        ASSERT_TRUE(error == cudaSuccess || error == cudaErrorPeerAccessAlreadyEnabled);
        (void)cudaGetLastError();
      }
    }
    CUDA_OK(cudaSetDevice(GetParam()));
    CUDA_OK(cudaMalloc(&far_, bytes_));
    CUDA_OK(setNow(far_, 0, bytes_));
    CUDA_OK(cudaDeviceSynchronize());
    CUDA_OK(cudaSetDevice(0));
    ASSERT_OK(load());
    CUDA_OK(cudaMalloc(&near_, bytes_));
    CUDA_OK(setNow(near_, 0, bytes_));
    CUDA_OK(cudaMalloc(&words_, kWordBytes));
    CUDA_OK(setNow(words_, 0, kWordBytes));
    CUDA_OK(cudaHostAlloc(&pinned_, pinnedBytes_, cudaHostAllocPortable | cudaHostAllocMapped));
    std::memset(pinned_, 0, pinnedBytes_);
    CUDA_OK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    // Streams share hardware queues by turns, so the next one has another.
    CUDA_OK(cudaStreamCreateWithFlags(&copies_, cudaStreamNonBlocking));
    CUDA_OK(cudaDeviceSynchronize());
  }
  void TearDown() override {
    for (cudaStream_t stream : {stream_, copies_})
      if (stream != nullptr) (void)cudaStreamDestroy(stream);
    (void)cudaFree(far_);
    (void)cudaFree(near_);
    (void)cudaFree(words_);
    (void)cudaFreeHost(pinned_);
  }

  std::byte* far(size_t offset = 0) const { return static_cast<std::byte*>(far_) + offset; }
  std::byte* near(size_t offset = 0) const { return static_cast<std::byte*>(near_) + offset; }
  // While a kernel may be waiting, as the next ones.
  void write(void* to, const void* from, size_t bytes) const {
    if (bytes == 0) return;
    EXPECT_EQ(cudaSuccess, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, copies_));
    EXPECT_EQ(cudaSuccess, cudaStreamSynchronize(copies_));
  }
  void write(void* to, uint64_t value) const { write(to, &value, 8); }
  uint64_t read(const void* from) const {
    uint64_t value = 0;
    write(&value, from, 8);
    return value;
  }
  std::vector<uint8_t> bytesOf(const void* from, size_t bytes) const {
    std::vector<uint8_t> found(bytes);
    write(found.data(), from, bytes);
    return found;
  }

  static constexpr size_t kWordBytes = 4096;
  const size_t bytes_, pinnedBytes_;
  void* far_ = nullptr;
  void* near_ = nullptr;
  void* words_ = nullptr;  // of GPU 0
  void* pinned_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaStream_t copies_ = nullptr;
};

class MessageKernelFixture : public KernelFixture {
 protected:
  // Indices of words in pinned memory.
  static constexpr size_t kAbort = 8, kCompletion = 16, kFault = 24, kTable = 64;
  static constexpr uint32_t kTableSlots = 40;
  static constexpr uint32_t kSlots = 4;  // of rings

  explicit MessageKernelFixture(size_t bytes) : KernelFixture(bytes, 8192) {}

  uint64_t* pinned(size_t index) const { return static_cast<uint64_t*>(pinned_) + index; }
  NamedRegion* table() const { return reinterpret_cast<NamedRegion*>(pinned(kTable)); }
  void set(size_t index, uint64_t value) const {
    std::atomic_ref<uint64_t>(*pinned(index)).store(value, std::memory_order_release);
  }
  uint64_t get(size_t index) const {
    return std::atomic_ref<uint64_t>(*pinned(index)).load(std::memory_order_acquire);
  }
  std::vector<uint8_t> fill(std::byte* to, size_t bytes, uint64_t seed) const {
    std::mt19937 random(static_cast<uint32_t>(seed));
    std::vector<uint8_t> data(bytes);
    for (uint8_t& byte : data) byte = static_cast<uint8_t>(random());
    write(to, data.data(), bytes);
    return data;
  }
  void name(uint32_t slot, uint64_t allocation, uint64_t generation, std::byte* base,
            uint64_t bytes) const {
    NamedRegion& region = table()[slot % kTableSlots];
    region.allocation = allocation;
    region.generation = generation;
    region.bytes = bytes;
    std::atomic_ref<const std::byte*>(region.base).store(base, std::memory_order_release);
  }

  bool ends(int milliseconds = 5000) const {
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
    while (cudaStreamQuery(stream_) == cudaErrorNotReady)
      if (std::chrono::steady_clock::now() > until) return false;
    return true;
  }
  // Ends the kernel if it does not end by itself.
  bool endsOrIsEnded() const {
    if (ends()) return true;
    set(kAbort, 1);
    (void)ends();
    return false;
  }
  // Starts a launch that must wait.
  template <class Launch>
  void startWaiting(const Launch& launch, Status (*start)(const Launch&)) const {
    set(kCompletion, 0);
    set(kAbort, 0);
    set(kFault, 0);
    ASSERT_OK(start(launch));
    EXPECT_FALSE(ends(20));
    EXPECT_EQ(0u, get(kCompletion));
  }
  // What every job of a message says.
  template <class Job>
  void describe(Job& job, uint64_t cursor) const {
    job.cursor = cursor;
    job.abort = pinned(kAbort);
    job.fault = pinned(kFault);
    job.faultValue = 99;
    job.completion = pinned(kCompletion);
    job.completionValue = cursor + 1;
    job.slots = kSlots;
  }
  template <class Launch>
  Launch launchOf(uint64_t cursor) const {
    Launch launch;
    describe(launch.job, cursor);
    launch.stream = stream_;
    return launch;
  }
};

}  // namespace peerlane::kernel
