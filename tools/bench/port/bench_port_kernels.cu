// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/port/bench_port_kernels.h"

#include <cuda_bf16.h>
#include <cuda_pipeline.h>
#include <cuda_runtime.h>
#include <mma.h>

#include <string>

namespace peerlane::bench {
namespace {

using port::ThisBlock;
using port::ThisThread;
using port::ThisWarp;

Status check(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return Status::ok();
  (void)cudaGetLastError();
  return Status(Code::kSystem, std::string(what) + ": " + cudaGetErrorString(result));
}
Status launched(const char* what) {
  return check(cudaGetLastError(), what);
}
cudaStream_t streamOf(void* stream) {
  return static_cast<cudaStream_t>(stream);
}

__device__ void count(uint64_t* wrong, bool isWrong) {
  if (isWrong) (void)port::fetchAdd(wrong, 1);
}

// --- Raw words
// ------------------------------------------------------------------------------------

constexpr uint64_t kPatience = 15'000'000'000;  // ns

__device__ bool awaitWord(const uint64_t* word, uint64_t atLeast, uint64_t* wrong) {
  uint64_t begin = 0;
  for (uint32_t polls = 1; port::loadAcquire(word) < atLeast; ++polls) {
    if (polls % 65536 != 0) continue;
    const uint64_t now = port::nanoseconds();
    if (begin == 0) begin = now;
    if (now - begin < kPatience) continue;
    count(wrong, true);
    return false;
  }
  return true;
}
__device__ void storeRelease(uint64_t* word, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" : : "l"(word), "l"(value) : "memory");
}

// Where the words of an exchange lie.
constexpr uint32_t kReadyAt = 0, kDataAt = 32, kDoneAt = 64;

__device__ void copyVectors(uint4* to, const uint4* from, uint64_t vectors, uint64_t first,
                            uint64_t step) {
  constexpr uint32_t kAhead = 4;
  uint64_t i = first;
  for (; i + (kAhead - 1) * step < vectors; i += kAhead * step) {
    uint4 held[kAhead];
#pragma unroll
    for (uint32_t k = 0; k < kAhead; ++k) held[k] = from[i + k * step];
#pragma unroll
    for (uint32_t k = 0; k < kAhead; ++k) to[i + k * step] = held[k];
  }
  for (; i < vectors; i += step) to[i] = from[i];
}

// --- Exchanges
// ------------------------------------------------------------------------------------

__global__ void exchangeByWarpKernel(PortExchange what) {
  const ThisWarp warp;
  bool good = static_cast<bool>(what.data.signal(warp));
  good = what.data.wait(warp) && good;
  good = what.data.putWithSignal(warp, 0, 0, what.bytes) && good;
  good = what.data.wait(warp) && good;
  if (warp.rank() == 0) count(what.wrong, !good);
}

__global__ void exchangeByPacketsKernel(PacketExchange what) {
  const ThisWarp warp;
  const uint64_t number = *what.counter + 1;
  const uint64_t at = PacketExchange::kPlace + number % 2 * PacketExchange::kPlaceBytes;
  const auto flag = static_cast<uint32_t>(number);
  bool good = static_cast<bool>(what.channel.putPackets(warp, at, 0, what.bytes, flag));
  good = what.channel.takePackets(warp, what.packets + at, what.into, what.bytes, flag) && good;
  if (warp.rank() != 0) return;
  *what.counter = number;
  count(what.wrong, !good);
}

__global__ void __launch_bounds__(kPortThreads) exchangeByBlocksKernel(PortExchange what) {
  const ThisBlock block;
  uint64_t* const counter = what.counters + blockIdx.x * kPortCounterStride;
  const uint64_t number = *counter + 1;
  const uint64_t slice = what.bytes / gridDim.x, at = blockIdx.x * slice;
  bool good = true;
  if (blockIdx.x == 0) good = static_cast<bool>(what.ready.signal(block));
  good = what.ready.semaphore.waitUntil(block, number) && good;
  good = what.data.putWithSignal(block, at, at, slice) && good;
  good = what.data.semaphore.waitUntil(block, number * gridDim.x) && good;
  if (block.rank() != 0) return;
  *counter = number;
  count(what.wrong, !good);
}

__global__ void rawWarpKernel(RawExchange what) {
  uint64_t number = 0;
  if (threadIdx.x == 0) {
    port::addRelease(what.theirs + kReadyAt, 1);
    number = ++*what.counters;
    (void)awaitWord(what.mine + kReadyAt, number, what.wrong);
  }
  __syncwarp();
  copyVectors(static_cast<uint4*>(what.to), static_cast<const uint4*>(what.from), what.bytes / 16,
              threadIdx.x, 32);
  __syncwarp();
  if (threadIdx.x != 0) return;
  port::addRelease(what.theirs + kDataAt, 1);
  (void)awaitWord(what.mine + kDataAt, number, what.wrong);
}

__global__ void __launch_bounds__(kPortThreads) rawBlocksKernel(RawExchange what) {
  uint64_t number = 0;
  if (threadIdx.x == 0) {
    if (blockIdx.x == 0) port::addRelease(what.theirs + kReadyAt, 1);
    number = ++what.counters[blockIdx.x * kPortCounterStride];
    (void)awaitWord(what.mine + kReadyAt, number, what.wrong);
  }
  __syncthreads();
  const uint64_t slice = what.bytes / gridDim.x / 16, at = blockIdx.x * slice;
  copyVectors(static_cast<uint4*>(what.to) + at, static_cast<const uint4*>(what.from) + at, slice,
              threadIdx.x, blockDim.x);
  __syncthreads();
  if (threadIdx.x != 0) return;
  port::addRelease(what.theirs + kDataAt, 1);
  (void)awaitWord(what.mine + kDataAt, number * gridDim.x, what.wrong);
}

// Word 0 of a request: its number; 1: bytes.
__global__ void __launch_bounds__(kPortThreads)
    rawResidentKernel(RawExchange what, uint64_t* request, uint64_t first, uint64_t exchanges) {
  __shared__ bool goesOn;
  for (uint64_t number = first + 1; number <= first + exchanges; ++number) {
    if (threadIdx.x == 0) goesOn = awaitWord(request, number, what.wrong);
    __syncthreads();
    if (!goesOn) return;
    const uint64_t vectors = *const_cast<volatile uint64_t*>(request + 1) / 16;
    copyVectors(static_cast<uint4*>(what.to), static_cast<const uint4*>(what.from), vectors,
                blockIdx.x * uint64_t{blockDim.x} + threadIdx.x, uint64_t{gridDim.x} * blockDim.x);
    __syncthreads();
    if (threadIdx.x == 0) {
      __threadfence_system();
      const uint64_t before = port::fetchAdd(what.mine + kDoneAt, 1);
      if (before + 1 == number * gridDim.x) storeRelease(what.theirs + kDataAt, number);
    }
    __syncthreads();
  }
}

__global__ void rawAskKernel(RawExchange what, uint64_t* request) {
  port::addRelease(what.theirs + kReadyAt, 1);
  const uint64_t number = ++*what.counters;
  (void)awaitWord(what.mine + kReadyAt, number, what.wrong);
  request[1] = what.bytes;
  storeRelease(request, number);
  (void)awaitWord(what.mine + kDataAt, number, what.wrong);
}

// --- The proxy
// ------------------------------------------------------------------------------------

__global__ void putsKernel(PortChannelHandle channel, uint64_t bytes, uint64_t times, bool byTurns,
                           uint64_t* wrong) {
  const ThisThread thread;
  for (uint64_t i = 0; i < times; ++i) {
    count(wrong, !channel.putWithSignal(thread, 0, 0, bytes));
    if (byTurns) count(wrong, !channel.wait(thread));
  }
  if (!byTurns) count(wrong, !channel.wait(thread, times));
}

__global__ void pushKernel(PortChannelHandle channel, uint64_t bytes, uint64_t times,
                           uint64_t* wrong) {
  for (uint64_t i = 0; i < times; ++i) count(wrong, !channel.put(ThisThread{}, 0, 0, bytes));
}

__global__ void signalsKernel(PortSemaphoreHandle semaphore, bool begins, uint64_t rounds,
                              uint64_t* wrong) {
  const ThisThread thread;
  bool good = true;
  for (uint64_t i = 0; i < rounds && good; ++i) {
    if (begins) semaphore.signal(thread);
    good = static_cast<bool>(semaphore.wait(thread));
    if (!begins) semaphore.signal(thread);
  }
  count(wrong, !good);
}

__global__ void rawSignalsKernel(uint64_t* mine, uint64_t* theirs, bool begins, uint64_t first,
                                 uint64_t rounds, uint64_t* wrong) {
  for (uint64_t i = first + 1; i <= first + rounds; ++i) {
    if (begins) storeRelease(theirs, i);
    if (!awaitWord(mine, i, wrong)) return;
    if (!begins) storeRelease(theirs, i);
  }
}

__global__ void requestsKernel(PortChannelHandle channel, uint32_t kind, uint64_t each,
                               uint64_t* wrong) {
  for (uint64_t i = 0; i < each; ++i) count(wrong, !channel.request(kind, 0, 0, i, 0, 0));
}

__global__ void rawRequestsKernel(RawRing ring, uint64_t each, uint64_t* wrong) {
  constexpr uint64_t kLap = uint64_t{1} << 63;
  for (uint64_t i = 0; i < each; ++i) {
    const uint64_t place = port::fetchAdd(ring.head, 1);
    if (place >= port::loadRelaxed(ring.tailSeen) + RawRing::kSlots) {
      uint64_t tail = 0, begin = 0;
      for (uint32_t polls = 1; place >= (tail = port::loadAcquire(ring.tail)) + RawRing::kSlots;
           ++polls) {
        if (polls % 65536 != 0) continue;
        const uint64_t now = port::nanoseconds();
        if (begin == 0) begin = now;
        if (now - begin < kPatience) continue;
        count(wrong, true);
        return;
      }
      port::raise(ring.tailSeen, tail);
    }
    const uint64_t mark = (place / RawRing::kSlots & 1) != 0 ? 0 : kLap;
    port::storePairRelease(reinterpret_cast<port::WordPair*>(ring.slots) + place % RawRing::kSlots,
                           {place | mark, i | mark});
  }
}

__global__ void raiseKernel(uint64_t* word, uint64_t value) {
  storeRelease(word, value);
}

// --- Other work of a GPU
// -------------------------------------------------------------------------

// 128 x 128 of the result by eight warps, each 32 x 64; the next pieces of the inputs are on their
// way to shared memory while the tensor cores have the last ones.
constexpr uint32_t kTile = 128, kMultiplyThreads = 256;
constexpr uint32_t kDepth = 32, kStages = 3, kPitch = kDepth + 8;  // no two rows in one bank
constexpr uint32_t kStageWords = kTile * kPitch;
constexpr uint32_t kMultiplyShared = 2 * kStages * kStageWords * sizeof(__nv_bfloat16);

__device__ void fetchTile(__nv_bfloat16* to, const __nv_bfloat16* from, uint32_t pitch) {
  constexpr uint32_t kVector = 8, kPerRow = kDepth / kVector;
  for (uint32_t i = threadIdx.x; i < kTile * kPerRow; i += kMultiplyThreads) {
    const uint32_t row = i / kPerRow, at = i % kPerRow * kVector;
    __pipeline_memcpy_async(to + row * kPitch + at, from + uint64_t{row} * pitch + at, 16);
  }
}

__global__ void __launch_bounds__(kMultiplyThreads)
    multiplyKernel(const __nv_bfloat16* a, const __nv_bfloat16* b, float* c, uint32_t size) {
  namespace w = nvcuda::wmma;
  extern __shared__ __nv_bfloat16 shared[];
  __nv_bfloat16* const lefts = shared;
  __nv_bfloat16* const rights = shared + kStages * kStageWords;
  const uint32_t warp = threadIdx.x / 32;
  const uint32_t row = warp % 4 * 32, column = warp / 4 * 64;
  const __nv_bfloat16* const ourA = a + uint64_t{blockIdx.y} * kTile * size;
  const __nv_bfloat16* const ourB = b + uint64_t{blockIdx.x} * kTile * size;
  w::fragment<w::accumulator, 16, 16, 16, float> sum[2][4];
  for (auto& line : sum)
    for (auto& part : line) w::fill_fragment(part, 0.0f);
  const uint32_t steps = size / kDepth;
  const auto fetch = [&](uint32_t step) {
    if (step < steps) {
      fetchTile(lefts + step % kStages * kStageWords, ourA + step * kDepth, size);
      fetchTile(rights + step % kStages * kStageWords, ourB + step * kDepth, size);
    }
    __pipeline_commit();
  };
  for (uint32_t step = 0; step + 1 < kStages; ++step) fetch(step);
  for (uint32_t step = 0; step < steps; ++step) {
    __pipeline_wait_prior(kStages - 2);
    __syncthreads();
    fetch(step + kStages - 1);
    const __nv_bfloat16* const left = lefts + step % kStages * kStageWords + row * kPitch;
    const __nv_bfloat16* const right = rights + step % kStages * kStageWords + column * kPitch;
    for (uint32_t k = 0; k < kDepth; k += 16) {
      w::fragment<w::matrix_a, 16, 16, 16, __nv_bfloat16, w::row_major> l[2];
      w::fragment<w::matrix_b, 16, 16, 16, __nv_bfloat16, w::col_major> r[4];
      for (uint32_t i = 0; i < 2; ++i)
        w::load_matrix_sync(l[i], left + i * 16 * kPitch + k, kPitch);
      for (uint32_t j = 0; j < 4; ++j)
        w::load_matrix_sync(r[j], right + j * 16 * kPitch + k, kPitch);
      for (uint32_t i = 0; i < 2; ++i)
        for (uint32_t j = 0; j < 4; ++j) w::mma_sync(sum[i][j], l[i], r[j], sum[i][j]);
    }
  }
  float* const out = c + (uint64_t{blockIdx.y} * kTile + row) * size + blockIdx.x * kTile + column;
  for (uint32_t i = 0; i < 2; ++i)
    for (uint32_t j = 0; j < 4; ++j)
      w::store_matrix_sync(out + uint64_t{i} * 16 * size + j * 16, sum[i][j], size,
                           w::mem_row_major);
}

__global__ void __launch_bounds__(kPortThreads)
    streamKernel(const uint4* from, uint4* to, uint64_t vectors) {
  copyVectors(to, from, vectors, blockIdx.x * uint64_t{blockDim.x} + threadIdx.x,
              uint64_t{gridDim.x} * blockDim.x);
}

}  // namespace

Status loadPortKernels() {
  cudaFuncAttributes seen{};
  const auto load = [&](auto* kernel) {
    return check(cudaFuncGetAttributes(&seen, kernel), "loading a kernel of the benchmark");
  };
  PEERLANE_RETURN_IF_ERROR(load(exchangeByWarpKernel));
  PEERLANE_RETURN_IF_ERROR(load(exchangeByPacketsKernel));
  PEERLANE_RETURN_IF_ERROR(load(exchangeByBlocksKernel));
  PEERLANE_RETURN_IF_ERROR(load(rawWarpKernel));
  PEERLANE_RETURN_IF_ERROR(load(rawBlocksKernel));
  PEERLANE_RETURN_IF_ERROR(load(rawResidentKernel));
  PEERLANE_RETURN_IF_ERROR(load(rawAskKernel));
  PEERLANE_RETURN_IF_ERROR(load(putsKernel));
  PEERLANE_RETURN_IF_ERROR(load(pushKernel));
  PEERLANE_RETURN_IF_ERROR(load(signalsKernel));
  PEERLANE_RETURN_IF_ERROR(load(rawSignalsKernel));
  PEERLANE_RETURN_IF_ERROR(load(requestsKernel));
  PEERLANE_RETURN_IF_ERROR(load(rawRequestsKernel));
  PEERLANE_RETURN_IF_ERROR(load(raiseKernel));
  PEERLANE_RETURN_IF_ERROR(
      check(cudaFuncSetAttribute(multiplyKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(kMultiplyShared)),
            "shared memory of a kernel of the benchmark"));
  PEERLANE_RETURN_IF_ERROR(load(multiplyKernel));
  return load(streamKernel);
}

Status portExchangeByWarp(void* stream, const PortExchange& what) {
  exchangeByWarpKernel<<<1, 32, 0, streamOf(stream)>>>(what);
  return launched("an exchange by a warp");
}

Status portExchangeByPackets(void* stream, const PacketExchange& what) {
  exchangeByPacketsKernel<<<1, 32, 0, streamOf(stream)>>>(what);
  return launched("an exchange by packets");
}

Status portExchangeByBlocks(void* stream, const PortExchange& what, uint32_t blocks) {
  exchangeByBlocksKernel<<<blocks, kPortThreads, 0, streamOf(stream)>>>(what);
  return launched("an exchange by blocks");
}

Status rawExchangeByWarp(void* stream, const RawExchange& what) {
  rawWarpKernel<<<1, 32, 0, streamOf(stream)>>>(what);
  return launched("a raw exchange by a warp");
}

Status rawExchangeByBlocks(void* stream, const RawExchange& what, uint32_t blocks) {
  rawBlocksKernel<<<blocks, kPortThreads, 0, streamOf(stream)>>>(what);
  return launched("a raw exchange by blocks");
}

Status rawResident(void* stream, const RawExchange& what, uint64_t* request, uint32_t blocks,
                   uint64_t first, uint64_t exchanges) {
  rawResidentKernel<<<blocks, kPortThreads, 0, streamOf(stream)>>>(what, request, first, exchanges);
  return launched("a raw kernel that stays");
}

Status rawExchangeByResident(void* stream, const RawExchange& what, uint64_t* request) {
  rawAskKernel<<<1, 1, 0, streamOf(stream)>>>(what, request);
  return launched("a raw exchange by a kernel that stays");
}

Status portPuts(void* stream, const PortChannelHandle& channel, uint64_t bytes, uint64_t times,
                bool byTurns, uint64_t* wrong) {
  putsKernel<<<1, 1, 0, streamOf(stream)>>>(channel, bytes, times, byTurns, wrong);
  return launched("puts");
}

Status portPush(void* stream, const PortChannelHandle& channel, uint64_t bytes, uint64_t times,
                uint64_t* wrong) {
  pushKernel<<<1, 1, 0, streamOf(stream)>>>(channel, bytes, times, wrong);
  return launched("puts alone");
}

Status portSignals(void* stream, const PortSemaphoreHandle& semaphore, bool begins, uint64_t rounds,
                   uint64_t* wrong) {
  signalsKernel<<<1, 1, 0, streamOf(stream)>>>(semaphore, begins, rounds, wrong);
  return launched("signals");
}

Status rawSignals(void* stream, uint64_t* mine, uint64_t* theirs, bool begins, uint64_t first,
                  uint64_t rounds, uint64_t* wrong) {
  rawSignalsKernel<<<1, 1, 0, streamOf(stream)>>>(mine, theirs, begins, first, rounds, wrong);
  return launched("raw signals");
}

Status portRequests(void* stream, const PortChannelHandle& channel, uint32_t kind, uint32_t blocks,
                    uint32_t threads, uint64_t each, uint64_t* wrong) {
  requestsKernel<<<blocks, threads, 0, streamOf(stream)>>>(channel, kind, each, wrong);
  return launched("requests");
}

Status rawRequests(void* stream, const RawRing& ring, uint32_t blocks, uint32_t threads,
                   uint64_t each, uint64_t* wrong) {
  rawRequestsKernel<<<blocks, threads, 0, streamOf(stream)>>>(ring, each, wrong);
  return launched("raw requests");
}

Status raiseWord(void* stream, uint64_t* word, uint64_t value) {
  raiseKernel<<<1, 1, 0, streamOf(stream)>>>(word, value);
  return launched("a word of the host");
}

Status multiplyMatrices(void* stream, const void* a, const void* b, float* c, uint32_t size) {
  multiplyKernel<<<dim3(size / kTile, size / kTile), kMultiplyThreads, kMultiplyShared,
                   streamOf(stream)>>>(static_cast<const __nv_bfloat16*>(a),
                                       static_cast<const __nv_bfloat16*>(b), c, size);
  return launched("a matrix product");
}

Status streamMemory(void* stream, const void* from, void* to, uint64_t bytes) {
  constexpr uint32_t kBlocks = 528;
  streamKernel<<<kBlocks, kPortThreads, 0, streamOf(stream)>>>(static_cast<const uint4*>(from),
                                                               static_cast<uint4*>(to), bytes / 16);
  return launched("a copy kernel");
}

Result<double> timeOnGpu(void* stream, const std::function<Status()>& enqueue) {
  struct Events {
    cudaEvent_t begin = nullptr, end = nullptr;
    ~Events() {
      if (begin != nullptr) (void)cudaEventDestroy(begin);
      if (end != nullptr) (void)cudaEventDestroy(end);
    }
  } events;
  PEERLANE_RETURN_IF_ERROR(check(cudaEventCreate(&events.begin), "cudaEventCreate"));
  PEERLANE_RETURN_IF_ERROR(check(cudaEventCreate(&events.end), "cudaEventCreate"));
  PEERLANE_RETURN_IF_ERROR(
      check(cudaEventRecord(events.begin, streamOf(stream)), "cudaEventRecord"));
  PEERLANE_RETURN_IF_ERROR(enqueue());
  PEERLANE_RETURN_IF_ERROR(check(cudaEventRecord(events.end, streamOf(stream)), "cudaEventRecord"));
  PEERLANE_RETURN_IF_ERROR(check(cudaEventSynchronize(events.end), "cudaEventSynchronize"));
  float milliseconds = 0;
  PEERLANE_RETURN_IF_ERROR(
      check(cudaEventElapsedTime(&milliseconds, events.begin, events.end), "cudaEventElapsedTime"));
  return static_cast<double>(milliseconds) * 1000;
}

Status rawCopy(void* stream, void* to, const void* from, uint64_t bytes) {
  return check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, streamOf(stream)),
               "cudaMemcpyAsync");
}

}  // namespace peerlane::bench
