// SPDX-License-Identifier: Apache-2.0
#include "bench/p2p_devices.h"

#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace peerlane::blocks {
namespace {

void must(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return;
  (void)std::fprintf(stderr, "p2p_blocks: %s: %s\n", what, cudaGetErrorString(result));
  ::_exit(1);
}

cudaStream_t streamOf(void* stream) {
  return static_cast<cudaStream_t>(stream);
}

double copyMany(void* to, const void* from, size_t bytes, void* stream) {
  constexpr int kCopies = 16, kSamples = 9;
  std::vector<double> samples;
  for (int sample = -2; sample < kSamples; ++sample) {
    must(cudaStreamSynchronize(streamOf(stream)), "synchronize");
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCopies; ++i)
      must(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, streamOf(stream)), "copy");
    must(cudaStreamSynchronize(streamOf(stream)), "synchronize");
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    if (sample >= 0) samples.push_back(took.count() / kCopies);
  }
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 2];
}

}  // namespace

bool BenchDevice::isThere() {
  return ::access("/dev/nvidiactl", F_OK) == 0 && ::access("/dev/nvidia0", F_OK) == 0;
}

void BenchDevice::open(int side) {
  int count = 0;
  must(cudaGetDeviceCount(&count), "counting GPUs");
  must(cudaSetDevice(std::min(side, count - 1)), "choosing a GPU");
  must(cudaMalloc(&word_, 8), "cudaMalloc");
}

void* BenchDevice::makeStream() {
  if (word_ == nullptr) return nullptr;
  cudaStream_t stream = nullptr;
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
  return stream;
}

void BenchDevice::synchronize(void* stream) {
  must(cudaStreamSynchronize(streamOf(stream)), "synchronize");
}

std::byte* BenchDevice::allocate(size_t bytes) {
  void* memory = nullptr;
  must(cudaMalloc(&memory, bytes), "cudaMalloc");
  return static_cast<std::byte*>(memory);
}

void* BenchDevice::word() {
  return word_;
}

void BenchDevice::clear(void* memory, size_t bytes) {
  must(cudaMemset(memory, 0, bytes), "cudaMemset");
  must(cudaDeviceSynchronize(), "synchronize");
}

void BenchDevice::toHost(void* to, const void* from, size_t bytes, bool onDevice) {
  if (onDevice)
    must(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "copy");
  else
    std::memcpy(to, from, bytes);
}

void BenchDevice::fromHost(void* to, const void* from, size_t bytes, bool onDevice) {
  if (onDevice)
    must(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "copy");
  else
    std::memcpy(to, from, bytes);
}

size_t BenchDevice::usedBytes() {
  if (word_ == nullptr) return 0;
  size_t free = 0, total = 0;
  must(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return total - free;
}

Exported BenchDevice::exported(void* memory) {
  cudaIpcMemHandle_t handle;
  must(cudaIpcGetMemHandle(&handle, memory), "cudaIpcGetMemHandle");
  Exported bytes{};
  static_assert(sizeof(handle) == sizeof(bytes));
  std::memcpy(bytes.data(), &handle, sizeof(handle));
  return bytes;
}

double BenchDevice::copyTime(const void* from, const Exported& to, size_t bytes, void* stream) {
  cudaIpcMemHandle_t handle;
  std::memcpy(&handle, to.data(), sizeof(handle));
  void* far = nullptr;
  must(cudaIpcOpenMemHandle(&far, handle, cudaIpcMemLazyEnablePeerAccess), "cudaIpcOpenMemHandle");
  const double us = copyMany(far, from, bytes, stream);
  must(cudaIpcCloseMemHandle(far), "cudaIpcCloseMemHandle");
  return us;
}

double BenchDevice::hostLinkTime(void* to, size_t bytes, void* stream) {
  void* pinned = nullptr;
  must(cudaMallocHost(&pinned, bytes), "cudaMallocHost");
  std::memset(pinned, 0, bytes);
  const double us = copyMany(to, pinned, bytes, stream);
  must(cudaFreeHost(pinned), "cudaFreeHost");
  return us;
}

}  // namespace peerlane::blocks
