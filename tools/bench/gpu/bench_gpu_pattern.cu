// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/gpu/bench_gpu_pattern.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <string>

namespace peerlane::bench {
namespace {

constexpr int kThreads = 256;
constexpr uint64_t kCtas = 1056;

// Spreads neighbouring seeds, so that no sequence is a shifted copy of another.
uint64_t startOf(uint64_t seed) {
  seed = (seed + 0x632BE59BD9B4E019ull) * 0xD6E8FEB86659FD93ull;
  seed = (seed ^ (seed >> 32)) * 0xD6E8FEB86659FD93ull;
  return seed ^ (seed >> 32);
}

__device__ uint64_t wordAt(uint64_t start, uint64_t index) {
  const uint64_t product = (start + index) * 0x9E3779B97F4A7C15ull;
  return product ^ (product >> 29);
}

__global__ void __launch_bounds__(kThreads)
    fillKernel(uint64_t* words, uint64_t bytes, uint64_t start) {
  const uint64_t step = uint64_t{gridDim.x} * kThreads;
  for (uint64_t i = uint64_t{blockIdx.x} * kThreads + threadIdx.x; i < bytes / 8; i += step)
    words[i] = wordAt(start, i);
  if (blockIdx.x != 0 || threadIdx.x != 0) return;
  for (uint64_t i = bytes / 8 * 8; i < bytes; ++i)
    reinterpret_cast<unsigned char*>(words)[i] =
        static_cast<unsigned char>(wordAt(start, i / 8) >> (8 * (i % 8)));
}

// Bytes of one run of at most 8 that are wrong.
__device__ uint32_t wrongIn(const unsigned char* at, uint64_t position, uint64_t bytes,
                            uint64_t start) {
  if (bytes == 8 && ((reinterpret_cast<uint64_t>(at) | position) & 7) == 0 &&
      *reinterpret_cast<const uint64_t*>(at) == wordAt(start, position / 8))
    return 0;
  uint32_t wrong = 0;
  for (uint64_t i = 0; i < bytes; ++i) {
    const uint64_t place = position + i;
    const auto wanted = static_cast<unsigned char>(wordAt(start, place / 8) >> (8 * (place % 8)));
    wrong += at[i] != wanted ? 1 : 0;
  }
  return wrong;
}

// Every span is cut into `parts`, so that few long ones occupy the device as well.
__global__ void __launch_bounds__(kThreads)
    countKernel(const unsigned char* data, const GpuSpan* list, uint64_t count, uint64_t parts,
                uint64_t start, unsigned long long* wrong) {
  unsigned long long found = 0;
  for (uint64_t unit = blockIdx.x; unit < count * parts; unit += gridDim.x) {
    const GpuSpan span = list[unit / parts];
    const uint64_t share = (span.bytes / parts + 8) / 8 * 8;
    const uint64_t begin = min(unit % parts * share, span.bytes);
    const uint64_t end = min(begin + share, span.bytes);
    for (uint64_t i = begin + threadIdx.x * 8; i < end; i += kThreads * 8)
      found +=
          wrongIn(data + span.offset + i, span.sourceOffset + i, min(end - i, uint64_t{8}), start);
  }
  if (found != 0) atomicAdd(wrong, found);
}

Status check(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return Status::ok();
  return Status(Code::kSystem, std::string(what) + ": " + cudaGetErrorString(result));
}

}  // namespace

Status loadGpuPatterns() {
  for (const void* kernel :
       {reinterpret_cast<const void*>(fillKernel), reinterpret_cast<const void*>(countKernel)}) {
    cudaFuncAttributes attributes{};
    PEERLANE_RETURN_IF_ERROR(
        check(cudaFuncGetAttributes(&attributes, kernel), "loading a kernel of the benchmark"));
  }
  return Status::ok();
}

Status fillGpuPattern(void* stream, void* data, uint64_t bytes, uint64_t seed) {
  fillKernel<<<kCtas, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<uint64_t*>(data), bytes, startOf(seed));
  return check(cudaGetLastError(), "filling GPU memory");
}

Status countGpuWrong(void* stream, const void* data, const GpuSpan* list, uint64_t count,
                     uint64_t seed, uint64_t* wrong) {
  const uint64_t parts = std::max<uint64_t>(1, kCtas / std::max<uint64_t>(count, 1));
  countKernel<<<kCtas, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<const unsigned char*>(data), list, count, parts, startOf(seed),
      reinterpret_cast<unsigned long long*>(wrong));
  return check(cudaGetLastError(), "verifying GPU memory");
}

}  // namespace peerlane::bench
