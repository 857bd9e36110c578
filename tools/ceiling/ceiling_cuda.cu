// SPDX-License-Identifier: Apache-2.0
#include "tools/ceiling/ceiling_cuda.h"

// The driver's types only: nothing of it is linked.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>

namespace peerlane::bench {
namespace {

constexpr int kThreads = 512;
constexpr int kInFlight = 8;  // 16-byte loads per thread before the first store
constexpr uint32_t kChunk = 32 << 10;
constexpr int kStages = 6;  // chunks of shared memory per CTA
// Of them, those being filled; the others are being written out.
[[maybe_unused]] constexpr int kReading = 3;
// An unanswered kernel ends itself. One look takes about 0.4 us.
constexpr uint32_t kMostLooks = 1u << 25;

// Where the words of a GpuGame lie. The peer writes the first two, in one cache line; nobody else
// writes there.
enum GameWord { kRaised = 0, kPayload = 1, kSent = 16, kReceived, kMessage, kArrived, kGaveUp };

// ---- Device -------------------------------------------------------------------------------------

__device__ uint64_t loadAcquire(const uint64_t* word) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}

__device__ void storeRelease(uint64_t* word, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

// The share of one thread: units first, first + step and so on, of 16 bytes where both sides are
// aligned to that, else of one.
__device__ void copyShare(const char* from, char* to, uint64_t bytes, uint64_t first,
                          uint64_t step) {
  uint64_t vectors = 0;
  if (((reinterpret_cast<uint64_t>(from) | reinterpret_cast<uint64_t>(to)) & 15) == 0) {
    const uint4* source = reinterpret_cast<const uint4*>(from);
    uint4* target = reinterpret_cast<uint4*>(to);
    vectors = bytes / 16;
    uint64_t i = first;
    for (; i + (kInFlight - 1) * step < vectors; i += kInFlight * step) {
      uint4 held[kInFlight];
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) held[k] = source[i + k * step];
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) target[i + k * step] = held[k];
    }
    for (; i < vectors; i += step) target[i] = source[i];
  }
  for (uint64_t i = vectors * 16 + first; i < bytes; i += step) to[i] = from[i];
}

// Thread 0 of every CTA, once the CTA's writes are ordered before it. The fence is the system's and
// covers what the barrier ordered; the add carries it on to the last CTA, whose fence takes it up.
__device__ void announce(uint64_t* counter, GpuFlag flag) {
  if (flag.word == nullptr) return;
  __threadfence_system();
  const auto before = atomicAdd(reinterpret_cast<unsigned long long*>(counter), 1ull);
  if (before + 1 != gridDim.x) return;
  *counter = 0;
  __threadfence_system();
  storeRelease(flag.word, flag.value);
}

__global__ void __launch_bounds__(kThreads)
    copyKernel(GpuPiece piece, uint64_t* counter, GpuFlag flag) {
  copyShare(static_cast<const char*>(piece.from), static_cast<char*>(piece.to), piece.bytes,
            blockIdx.x * uint64_t{kThreads} + threadIdx.x, gridDim.x * uint64_t{kThreads});
  __syncthreads();
  if (threadIdx.x == 0) announce(counter, flag);
}

__global__ void __launch_bounds__(kThreads)
    gatherKernel(const GpuPiece* list, uint64_t count, uint32_t parts, uint64_t* counter,
                 GpuFlag flag) {
  for (uint64_t unit = blockIdx.x; unit < count * parts; unit += gridDim.x) {
    const GpuPiece piece = list[unit / parts];
    const uint64_t share = (piece.bytes / parts + 15) / 16 * 16;
    const uint64_t begin = min(unit % parts * share, piece.bytes);
    const uint64_t end = unit % parts + 1 == parts ? piece.bytes : min(begin + share, piece.bytes);
    copyShare(static_cast<const char*>(piece.from) + begin, static_cast<char*>(piece.to) + begin,
              end - begin, threadIdx.x, kThreads);
  }
  __syncthreads();
  if (threadIdx.x == 0) announce(counter, flag);
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
__device__ uint32_t sharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ void startRead(void* stage, uint64_t* barrier, const char* from, uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(sharedAddress(barrier)),
      "r"(bytes)
      : "memory");
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(sharedAddress(stage)),
      "l"(from), "r"(bytes), "r"(sharedAddress(barrier))
      : "memory");
}

__device__ void awaitRead(uint64_t* barrier, uint32_t parity) {
  uint32_t done = 0;
  while (done == 0)
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;"
        " selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(sharedAddress(barrier)), "r"(parity)
        : "memory");
}

__device__ void startWrite(char* to, const void* stage, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(sharedAddress(stage)), "r"(bytes)
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
#endif

// One thread keeps kReading chunks on their way in and the others on their way out.
__global__ void __launch_bounds__(32)
    bulkKernel(const GpuPiece* list, uint64_t count, uint64_t bytesOfEach, uint64_t* counter,
               GpuFlag flag) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) char stages[];
  __shared__ __align__(8) uint64_t full[kStages];
  if (threadIdx.x != 0) return;
  for (uint64_t& barrier : full)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(sharedAddress(&barrier))
                 : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  const uint64_t perPiece = (bytesOfEach + kChunk - 1) / kChunk;
  const uint64_t total = count * perPiece;
  const uint64_t mine = blockIdx.x < total ? (total - blockIdx.x + gridDim.x - 1) / gridDim.x : 0;
  for (uint64_t k = 0; k < mine + kReading; ++k) {
    if (k < mine) {
      // This stage's last write began kStages - kReading writes ago: it must have been read out.
      if (k >= kStages)
        asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kStages - kReading - 1) : "memory");
      const uint64_t unit = blockIdx.x + k * gridDim.x;
      const uint64_t offset = unit % perPiece * kChunk;
      startRead(stages + k % kStages * kChunk, &full[k % kStages],
                static_cast<const char*>(list[unit / perPiece].from) + offset,
                static_cast<uint32_t>(min(bytesOfEach - offset, uint64_t{kChunk})));
    }
    if (k < kReading) continue;
    const uint64_t written = k - kReading;
    const uint64_t unit = blockIdx.x + written * gridDim.x;
    const uint64_t offset = unit % perPiece * kChunk;
    awaitRead(&full[written % kStages], static_cast<uint32_t>(written / kStages & 1));
    startWrite(static_cast<char*>(list[unit / perPiece].to) + offset,
               stages + written % kStages * kChunk,
               static_cast<uint32_t>(min(bytesOfEach - offset, uint64_t{kChunk})));
  }
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  asm volatile("fence.proxy.async.global;" ::: "memory");
  announce(counter, flag);
#endif
}

__global__ void emptyKernel() {}

__global__ void sendKernel(uint64_t* mine, uint64_t* theirs, GameWord message) {
  const uint64_t number = ++mine[kSent];
  theirs[kPayload] = mine[message];
  storeRelease(theirs + kRaised, number);
}

__global__ void receiveKernel(uint64_t* mine) {
  const uint64_t number = ++mine[kReceived];
  if (mine[kGaveUp] != 0) return;
  for (uint32_t looks = 0; loadAcquire(mine + kRaised) < number; ++looks)
    if (looks > kMostLooks) {
      mine[kGaveUp] = 1;
      return;
    }
  mine[kArrived] = *static_cast<volatile const uint64_t*>(mine + kPayload);
}

__global__ void __launch_bounds__(kThreads)
    sendBytesKernel(uint64_t* mine, uint64_t* theirs, GpuPiece piece, uint64_t* counter) {
  copyShare(static_cast<const char*>(piece.from), static_cast<char*>(piece.to), piece.bytes,
            blockIdx.x * uint64_t{blockDim.x} + threadIdx.x, gridDim.x * uint64_t{blockDim.x});
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (gridDim.x > 1) {
    __threadfence_system();
    if (atomicAdd(reinterpret_cast<unsigned long long*>(counter), 1ull) + 1 != gridDim.x) return;
    *counter = 0;
    __threadfence_system();
  }
  storeRelease(theirs + kRaised, ++mine[kSent]);
}

__global__ void __launch_bounds__(kThreads) receiveBytesKernel(uint64_t* mine, GpuPiece piece) {
  __shared__ bool came;
  if (threadIdx.x == 0) {
    const uint64_t number = ++mine[kReceived];
    came = mine[kGaveUp] == 0;
    for (uint32_t looks = 0; came && loadAcquire(mine + kRaised) < number; ++looks)
      if (looks > kMostLooks) {
        mine[kGaveUp] = 1;
        came = false;
      }
  }
  __syncthreads();
  if (came)
    copyShare(static_cast<const char*>(piece.from), static_cast<char*>(piece.to), piece.bytes,
              threadIdx.x, blockDim.x);
}

// ---- Host ---------------------------------------------------------------------------------------

using Clock = std::chrono::steady_clock;

double microsecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

Status check(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return Status::ok();
  const bool absent = result == cudaErrorNotSupported || result == cudaErrorCallRequiresNewerDriver;
  return Status(absent ? Code::kNotSupported : Code::kSystem,
                std::string(what) + ": " + cudaGetErrorString(result));
}

Status checkLaunch(const char* what) {
  return check(cudaGetLastError(), what);
}

using WriteValue64 = CUresult (*)(CUstream, CUdeviceptr, cuuint64_t, unsigned);

// cuStreamWriteValue64 with the signature of 11.7 and newer; null without a driver that has it.
WriteValue64 findWriteValue64() {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  (void)cudaGetDriverEntryPointByVersion("cuStreamWriteValue64", &entry, 12000, cudaEnableDefault,
                                         &found);
#else
  (void)cudaGetDriverEntryPoint("cuStreamWriteValue64", &entry, cudaEnableDefault, &found);
#endif
  return found == cudaDriverEntryPointSuccess ? reinterpret_cast<WriteValue64>(entry) : nullptr;
}

WriteValue64 writeValue64() {
  static const WriteValue64 entry = findWriteValue64();
  return entry;
}

// With the fence that such a write has by default: earlier work of the stream is visible first.
Status raise(void* stream, GpuFlag flag) {
  if (flag.word == nullptr) return Status::ok();
  const WriteValue64 write = writeValue64();
  if (write == nullptr)
    return Status(Code::kNotSupported, "the CUDA driver has no cuStreamWriteValue64");
  const CUresult result =
      write(static_cast<CUstream>(stream), reinterpret_cast<CUdeviceptr>(flag.word), flag.value, 0);
  if (result == CUDA_SUCCESS) return Status::ok();
  return Status(Code::kSystem, "cuStreamWriteValue64: error " + std::to_string(result));
}

Status copyOne(cudaStream_t stream, const GpuPiece& piece) {
  return check(cudaMemcpyAsync(piece.to, piece.from, piece.bytes, cudaMemcpyDefault, stream),
               "cudaMemcpyAsync");
}

Status checkKernel(const GpuKernel& kernel, GpuFlag flag) {
  if (kernel.ctas > 0 && (flag.word == nullptr || kernel.counter != nullptr)) return Status::ok();
  return Status(Code::kInvalidArgument,
                "a kernel of the raw limits needs at least one CTA, and a counter for its flag");
}

template <typename Handle, cudaError_t (*kDestroy)(Handle)>
struct Destroy {
  using pointer = Handle;
  void operator()(Handle handle) const { (void)kDestroy(handle); }
};
using Event = std::unique_ptr<cudaEvent_t, Destroy<cudaEvent_t, cudaEventDestroy>>;
using Graph = std::unique_ptr<cudaGraph_t, Destroy<cudaGraph_t, cudaGraphDestroy>>;
using GraphExec = std::unique_ptr<cudaGraphExec_t, Destroy<cudaGraphExec_t, cudaGraphExecDestroy>>;

Result<Event> makeEvent() {
  cudaEvent_t event = nullptr;
  PEERLANE_RETURN_IF_ERROR(check(cudaEventCreate(&event), "cudaEventCreate"));
  return Event(event);
}

// One side of a game, enqueued round by round or graph by graph.
class GamePlayer {
 public:
  GamePlayer(void* stream, const GpuGame& game, bool serves)
      : stream_(static_cast<cudaStream_t>(stream)), game_(game), serves_(serves) {}

  Status begin(const GpuRepeats& repeats) {
    if (game_.perGraph == 0) return Status::ok();
    if (repeats.warmup % game_.perGraph != 0 || repeats.perSample % game_.perGraph != 0)
      return Status(Code::kInvalidArgument, "warm-up and samples must be whole graphs of " +
                                                std::to_string(game_.perGraph) + " rounds each");
    PEERLANE_RETURN_IF_ERROR(
        check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
              "cudaStreamBeginCapture"));
    const Status played = rounds(game_.perGraph);
    cudaGraph_t captured = nullptr;
    PEERLANE_RETURN_IF_ERROR(
        check(cudaStreamEndCapture(stream_, &captured), "cudaStreamEndCapture"));
    const Graph graph(captured);
    PEERLANE_RETURN_IF_ERROR(played);
    cudaGraphExec_t exec = nullptr;
    PEERLANE_RETURN_IF_ERROR(
        check(cudaGraphInstantiateWithFlags(&exec, captured, 0), "cudaGraphInstantiate"));
    graph_.reset(exec);
    return Status::ok();
  }

  Status play(uint64_t count) {
    if (!graph_) return rounds(count);
    for (uint64_t i = 0; i < count; i += game_.perGraph)
      PEERLANE_RETURN_IF_ERROR(check(cudaGraphLaunch(graph_.get(), stream_), "cudaGraphLaunch"));
    return Status::ok();
  }

  Status wait() { return check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

  Result<uint64_t> word(GameWord which) {
    uint64_t value = 0;
    PEERLANE_RETURN_IF_ERROR(check(
        cudaMemcpyAsync(&value, game_.mine + which, sizeof(value), cudaMemcpyDeviceToHost, stream_),
        "cudaMemcpyAsync"));
    PEERLANE_RETURN_IF_ERROR(wait());
    return value;
  }

  Status setMessage(uint64_t value) {
    PEERLANE_RETURN_IF_ERROR(check(cudaMemcpyAsync(game_.mine + kMessage, &value, sizeof(value),
                                                   cudaMemcpyHostToDevice, stream_),
                                   "cudaMemcpyAsync"));
    return wait();
  }

  Status verdict() {
    PEERLANE_ASSIGN(const uint64_t gaveUp, word(kGaveUp));
    if (gaveUp == 0) return Status::ok();
    return Status(Code::kTimeout, "the other side of the raw ping-pong did not answer");
  }

 private:
  static uint32_t threadsFor(uint64_t bytes) {
    return static_cast<uint32_t>(std::clamp<uint64_t>((bytes / 16 + 31) / 32 * 32, 32, kThreads));
  }
  bool byInbox() const { return game_.bytes.count <= GpuGameBytes::kMostInbox; }
  void sendBytes() {
    const GpuGameBytes& bytes = game_.bytes;
    void* const inbox = reinterpret_cast<char*>(game_.theirs) + GpuGameBytes::kInboxAt;
    const GpuPiece piece{serves_ ? bytes.from : bytes.into, byInbox() ? inbox : bytes.there,
                         bytes.count};
    constexpr uint64_t kPerCta = 16 << 10;
    const auto ctas = static_cast<uint32_t>(
        std::clamp<uint64_t>((bytes.count + kPerCta - 1) / kPerCta, 1, GpuKernel{}.ctas));
    sendBytesKernel<<<ctas, threadsFor(bytes.count), 0, stream_>>>(game_.mine, game_.theirs, piece,
                                                                   bytes.counter);
  }
  void receiveBytes() {
    const void* const inbox = reinterpret_cast<char*>(game_.mine) + GpuGameBytes::kInboxAt;
    const GpuPiece piece{inbox, game_.bytes.into, byInbox() ? game_.bytes.count : 0};
    receiveBytesKernel<<<1, threadsFor(piece.bytes), 0, stream_>>>(game_.mine, piece);
  }
  Status rounds(uint64_t count) {
    for (uint64_t i = 0; game_.bytes.count > 0 && i < count; ++i) {
      if (serves_) sendBytes();
      receiveBytes();
      if (!serves_) sendBytes();
    }
    if (game_.bytes.count > 0) return checkLaunch("a kernel of the raw messages");
    for (uint64_t i = 0; i < count; ++i) {
      if (serves_) sendKernel<<<1, 1, 0, stream_>>>(game_.mine, game_.theirs, kMessage);
      receiveKernel<<<1, 1, 0, stream_>>>(game_.mine);
      if (!serves_) sendKernel<<<1, 1, 0, stream_>>>(game_.mine, game_.theirs, kArrived);
    }
    return checkLaunch("a kernel of the raw ping-pong");
  }

  cudaStream_t stream_;
  const GpuGame game_;
  const bool serves_;
  GraphExec graph_;
};

}  // namespace

Status prepareGpuCeilings() {
  if (writeValue64() == nullptr)
    return Status(Code::kNotSupported, "the CUDA driver has no cuStreamWriteValue64");
  const void* const kernels[] = {
      reinterpret_cast<const void*>(copyKernel),
      reinterpret_cast<const void*>(gatherKernel),
      reinterpret_cast<const void*>(bulkKernel),
      reinterpret_cast<const void*>(emptyKernel),
      reinterpret_cast<const void*>(sendKernel),
      reinterpret_cast<const void*>(receiveKernel),
      reinterpret_cast<const void*>(sendBytesKernel),
      reinterpret_cast<const void*>(receiveBytesKernel),
  };
  for (const void* kernel : kernels) {
    cudaFuncAttributes attributes{};
    PEERLANE_RETURN_IF_ERROR(
        check(cudaFuncGetAttributes(&attributes, kernel), "loading a kernel of the raw limits"));
  }
  int device = 0;
  int most = 0;
  PEERLANE_RETURN_IF_ERROR(check(cudaGetDevice(&device), "cudaGetDevice"));
  PEERLANE_RETURN_IF_ERROR(
      check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
            "cudaDeviceGetAttribute"));
  if (most < static_cast<int>(kStages * kChunk)) return Status::ok();  // no bulk copies here
  return check(cudaFuncSetAttribute(bulkKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    kStages * kChunk),
               "cudaFuncSetAttribute");
}

Status gpuCopyEngine(void* stream, std::span<const GpuPiece> pieces, GpuFlag flag) {
  for (const GpuPiece& piece : pieces)
    PEERLANE_RETURN_IF_ERROR(copyOne(static_cast<cudaStream_t>(stream), piece));
  return raise(stream, flag);
}

Status gpuCopyWindow(void* stream, const GpuPiece& piece, uint64_t stride, uint64_t count,
                     GpuFlag flag) {
  for (uint64_t i = 0; i < count; ++i) {
    const GpuPiece message{static_cast<const char*>(piece.from) + i * stride,
                           static_cast<char*>(piece.to) + i * stride, piece.bytes};
    PEERLANE_RETURN_IF_ERROR(gpuCopyEngine(stream, {&message, 1}, {flag.word, flag.value + i}));
  }
  return Status::ok();
}

GpuBatch::GpuBatch(std::span<const GpuPiece> pieces) {
  for (const GpuPiece& piece : pieces) {
    from.push_back(piece.from);
    to.push_back(piece.to);
    bytes.push_back(piece.bytes);
  }
}

Status gpuCopyBatch(void* stream, const GpuBatch& batch, GpuFlag flag) {
#if CUDART_VERSION >= 12080
  cudaMemcpyAttributes order{};
  order.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  size_t first = 0;
  // The call of 12.x takes the lists as not constant; it does not write them.
#if CUDART_VERSION >= 13000
  const cudaError_t result = cudaMemcpyBatchAsync(
      const_cast<const void**>(const_cast<void* const*>(batch.to.data())),
      const_cast<const void**>(batch.from.data()), batch.bytes.data(), batch.bytes.size(), &order,
      &first, 1, static_cast<cudaStream_t>(stream));
#else
  size_t failed = 0;
  const cudaError_t result =
      cudaMemcpyBatchAsync(const_cast<void**>(batch.to.data()),
                           const_cast<void**>(const_cast<const void* const*>(batch.from.data())),
                           const_cast<size_t*>(batch.bytes.data()), batch.bytes.size(), &order,
                           &first, 1, &failed, static_cast<cudaStream_t>(stream));
#endif
  PEERLANE_RETURN_IF_ERROR(check(result, "cudaMemcpyBatchAsync"));
  return raise(stream, flag);
#else
  (void)stream, (void)batch, (void)flag;
  return Status(Code::kNotSupported, "this toolkit has no cudaMemcpyBatchAsync (12.8 or newer)");
#endif
}

Status gpuKernelCopy(void* stream, const GpuKernel& kernel, const GpuPiece& piece, GpuFlag flag) {
  PEERLANE_RETURN_IF_ERROR(checkKernel(kernel, flag));
  copyKernel<<<kernel.ctas, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(piece, kernel.counter,
                                                                              flag);
  return checkLaunch("the raw copy kernel");
}

Status gpuKernelGather(void* stream, const GpuKernel& kernel, const GpuPiece* list, uint64_t count,
                       uint32_t parts, GpuFlag flag) {
  PEERLANE_RETURN_IF_ERROR(checkKernel(kernel, flag));
  gatherKernel<<<kernel.ctas, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      list, count, std::max(parts, 1u), kernel.counter, flag);
  return checkLaunch("the raw gather kernel");
}

Status gpuBulkGather(void* stream, const GpuKernel& kernel, const GpuPiece* list, uint64_t count,
                     uint64_t bytesOfEach, GpuFlag flag) {
  PEERLANE_RETURN_IF_ERROR(checkKernel(kernel, flag));
  int device = 0;
  int major = 0;
  PEERLANE_RETURN_IF_ERROR(check(cudaGetDevice(&device), "cudaGetDevice"));
  PEERLANE_RETURN_IF_ERROR(
      check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
            "cudaDeviceGetAttribute"));
  if (major < 9)
    return Status(Code::kNotSupported, "bulk copies need compute capability 9.0 or newer");
  bulkKernel<<<kernel.ctas, 32, kStages * kChunk, static_cast<cudaStream_t>(stream)>>>(
      list, count, bytesOfEach, kernel.counter, flag);
  return checkLaunch("the raw bulk kernel");
}

Status gpuEmptyKernel(void* stream) {
  emptyKernel<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>();
  return checkLaunch("an empty kernel");
}

Status measureGpu(void* stream, const GpuRepeats& repeats,
                  const std::function<Status(uint64_t iteration)>& enqueue, GpuTimes& times) {
  const auto queue = static_cast<cudaStream_t>(stream);
  PEERLANE_ASSIGN(const Event begin, makeEvent());
  PEERLANE_ASSIGN(const Event end, makeEvent());
  uint64_t iteration = 0;
  const auto run = [&](uint64_t count) -> Status {
    for (uint64_t i = 0; i < count; ++i) PEERLANE_RETURN_IF_ERROR(enqueue(iteration++));
    return Status::ok();
  };
  PEERLANE_RETURN_IF_ERROR(run(repeats.warmup));
  PEERLANE_RETURN_IF_ERROR(check(cudaStreamSynchronize(queue), "cudaStreamSynchronize"));
  const auto per = static_cast<double>(repeats.perSample);
  for (uint64_t sample = 0; sample < repeats.samples; ++sample) {
    PEERLANE_RETURN_IF_ERROR(check(cudaEventRecord(begin.get(), queue), "cudaEventRecord"));
    const Clock::time_point start = Clock::now();
    PEERLANE_RETURN_IF_ERROR(run(repeats.perSample));
    const double posting = microsecondsSince(start);
    PEERLANE_RETURN_IF_ERROR(check(cudaEventRecord(end.get(), queue), "cudaEventRecord"));
    PEERLANE_RETURN_IF_ERROR(check(cudaEventSynchronize(end.get()), "cudaEventSynchronize"));
    times.host.add(microsecondsSince(start) / per);
    times.posting.add(posting / per);
    float milliseconds = 0;
    PEERLANE_RETURN_IF_ERROR(
        check(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()), "cudaEventElapsedTime"));
    times.device.add(milliseconds * 1e3 / per);
  }
  return Status::ok();
}

Status gpuServe(void* stream, const GpuGame& game, const GpuRepeats& repeats, Samples& roundTrips) {
  GamePlayer player(stream, game, true);
  PEERLANE_RETURN_IF_ERROR(player.begin(repeats));
  PEERLANE_ASSIGN(const uint64_t before, player.word(kMessage));
  const uint64_t message = (before + 1) * 0x9e3779b97f4a7c15ull;
  PEERLANE_RETURN_IF_ERROR(player.setMessage(message));
  PEERLANE_RETURN_IF_ERROR(player.play(repeats.warmup));
  PEERLANE_RETURN_IF_ERROR(player.wait());
  for (uint64_t sample = 0; sample < repeats.samples; ++sample) {
    const Clock::time_point start = Clock::now();
    PEERLANE_RETURN_IF_ERROR(player.play(repeats.perSample));
    PEERLANE_RETURN_IF_ERROR(player.wait());
    roundTrips.add(microsecondsSince(start) / static_cast<double>(repeats.perSample));
  }
  PEERLANE_RETURN_IF_ERROR(player.verdict());
  if (game.bytes.count > 0) return Status::ok();
  PEERLANE_ASSIGN(const uint64_t back, player.word(kArrived));
  if (back == message || repeats.warmup + repeats.samples == 0) return Status::ok();
  return Status(Code::kCorrupt, "the raw ping-pong did not bring its message back");
}

Status gpuReturn(void* stream, const GpuGame& game, const GpuRepeats& repeats) {
  GamePlayer player(stream, game, false);
  PEERLANE_RETURN_IF_ERROR(player.begin(repeats));
  PEERLANE_RETURN_IF_ERROR(player.play(repeats.warmup));
  PEERLANE_RETURN_IF_ERROR(player.play(repeats.samples * repeats.perSample));
  PEERLANE_RETURN_IF_ERROR(player.wait());
  return player.verdict();
}

}  // namespace peerlane::bench
