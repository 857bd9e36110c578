// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/gpu/bench_gpu_memory.h"

// The driver's types only: nothing of it is linked.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstring>

namespace peerlane::bench {
namespace {

using Clock = std::chrono::steady_clock;

Status check(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return Status::ok();
  (void)cudaGetLastError();
  const Code code = result == cudaErrorMemoryAllocation ? Code::kOutOfMemory : Code::kSystem;
  return Status(code, std::string(what) + ": " + cudaGetErrorString(result));
}

Status checkDriver(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return Status::ok();
  return Status(Code::kSystem, std::string(what) + ": error " + std::to_string(result));
}

template <typename Call>
Call findCall(const char* name) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  (void)cudaGetDriverEntryPointByVersion(name, &entry, 12000, cudaEnableDefault, &found);
#else
  (void)cudaGetDriverEntryPoint(name, &entry, cudaEnableDefault, &found);
#endif
  return found == cudaDriverEntryPointSuccess ? reinterpret_cast<Call>(entry) : nullptr;
}

struct Driver {
  decltype(&cuMemGetAddressRange) addressRange =
      findCall<decltype(&cuMemGetAddressRange)>("cuMemGetAddressRange");
  decltype(&cuMemRetainAllocationHandle) retain =
      findCall<decltype(&cuMemRetainAllocationHandle)>("cuMemRetainAllocationHandle");
  decltype(&cuMemExportToShareableHandle) share =
      findCall<decltype(&cuMemExportToShareableHandle)>("cuMemExportToShareableHandle");
  decltype(&cuMemImportFromShareableHandle) import =
      findCall<decltype(&cuMemImportFromShareableHandle)>("cuMemImportFromShareableHandle");
  decltype(&cuMemAddressReserve) reserve =
      findCall<decltype(&cuMemAddressReserve)>("cuMemAddressReserve");
  decltype(&cuMemAddressFree) unreserve = findCall<decltype(&cuMemAddressFree)>("cuMemAddressFree");
  decltype(&cuMemMap) map = findCall<decltype(&cuMemMap)>("cuMemMap");
  decltype(&cuMemUnmap) unmap = findCall<decltype(&cuMemUnmap)>("cuMemUnmap");
  decltype(&cuMemSetAccess) setAccess = findCall<decltype(&cuMemSetAccess)>("cuMemSetAccess");
  decltype(&cuMemRelease) release = findCall<decltype(&cuMemRelease)>("cuMemRelease");

  bool complete() const {
    return addressRange && retain && share && import && reserve && unreserve && map && unmap &&
           setAccess && release;
  }
};

const Driver& driver() {
  static const Driver only;
  return only;
}

Status needDriver() {
  if (driver().complete()) return Status::ok();
  return Status(Code::kNotSupported, "the CUDA driver lacks calls of virtual memory management");
}

// Maps an imported allocation; takes the handle.
Result<std::byte*> place(CUmemGenericAllocationHandle handle, uint64_t bytes, int gpu) {
  CUdeviceptr address = 0;
  Status status =
      checkDriver(driver().reserve(&address, bytes, 0, 0, 0), "cuMemAddressReserve (raw window)");
  if (status.isOk()) {
    status = checkDriver(driver().map(address, bytes, 0, handle, 0), "cuMemMap (raw window)");
    if (!status.isOk()) (void)driver().unreserve(address, bytes);
  }
  (void)driver().release(handle);
  PEERLANE_RETURN_IF_ERROR(status);
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = gpu;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  status =
      checkDriver(driver().setAccess(address, bytes, &access, 1), "cuMemSetAccess (raw window)");
  if (status.isOk()) return reinterpret_cast<std::byte*>(address);
  (void)driver().unmap(address, bytes);
  (void)driver().unreserve(address, bytes);
  return status;
}

cudaStream_t queueOf(const GpuStream& stream) {
  return static_cast<cudaStream_t>(stream.handle());
}

std::string versionText(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace

double gpuBenchNow() {
  return std::chrono::duration<double, std::micro>(Clock::now().time_since_epoch()).count();
}

Result<int> countGpus() {
  int count = 0, driver = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  if (result == cudaSuccess && count > 0) return count;
  (void)cudaGetLastError();
  // The runtime calls a missing driver an old one.
  const bool isMissing = cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0;
  return Status(Code::kNotSupported,
                std::string("--device cuda needs a GPU: ") +
                    (isMissing               ? "no CUDA driver on this machine (libcuda.so.1)"
                     : result == cudaSuccess ? "none is visible (CUDA_VISIBLE_DEVICES)"
                                             : cudaGetErrorString(result)));
}

Result<GpuModel> useGpu(int gpu) {
  PEERLANE_RETURN_IF_ERROR(check(cudaSetDevice(gpu), "cudaSetDevice"));
  PEERLANE_RETURN_IF_ERROR(check(cudaFree(nullptr), "making a CUDA context"));
  cudaDeviceProp properties{};
  PEERLANE_RETURN_IF_ERROR(
      check(cudaGetDeviceProperties(&properties, gpu), "cudaGetDeviceProperties"));
  return GpuModel{properties.name, properties.multiProcessorCount};
}

std::string nameOfGpu(int gpu) {
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, gpu) == cudaSuccess) return properties.name;
  (void)cudaGetLastError();
  return "?";
}

Result<uint64_t> usedGpuBytes() {
  size_t free = 0;
  size_t total = 0;
  PEERLANE_RETURN_IF_ERROR(check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo"));
  return uint64_t{total - free};
}

std::string gpuVersions() {
  int runtime = 0;
  int installed = 0;
  (void)cudaRuntimeGetVersion(&runtime);
  (void)cudaDriverGetVersion(&installed);
  return versionText(runtime) + ", driver for " + versionText(installed);
}

Result<std::unique_ptr<GpuStream>> GpuStream::create() {
  cudaStream_t stream = nullptr;
  PEERLANE_RETURN_IF_ERROR(
      check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate"));
  return std::unique_ptr<GpuStream>(new GpuStream(stream));
}

GpuStream::~GpuStream() {
  (void)cudaStreamDestroy(static_cast<cudaStream_t>(handle_));
}

Status GpuStream::wait() const {
  const Clock::time_point deadline = Clock::now() + kGpuPatience;
  for (;;) {
    const cudaError_t state = cudaStreamQuery(static_cast<cudaStream_t>(handle_));
    if (state == cudaSuccess) return Status::ok();
    if (state != cudaErrorNotReady) return check(state, "work on a stream of the benchmark");
    if (Clock::now() > deadline)
      return Status(Code::kTimeout, "a stream of the benchmark still has work after " +
                                        std::to_string(kGpuPatience.count()) + " s");
  }
}

Result<std::unique_ptr<GpuGraph>> GpuGraph::capture(const GpuStream& stream,
                                                    const std::function<Status()>& enqueue) {
  auto* const queue = static_cast<cudaStream_t>(stream.handle());
  PEERLANE_RETURN_IF_ERROR(check(cudaStreamBeginCapture(queue, cudaStreamCaptureModeThreadLocal),
                                 "cudaStreamBeginCapture"));
  const Status enqueued = enqueue();
  cudaGraph_t graph = nullptr;
  Status made = check(cudaStreamEndCapture(queue, &graph), "cudaStreamEndCapture");
  if (!enqueued.isOk()) made = enqueued;
  cudaGraphExec_t executable = nullptr;
  if (made.isOk())
    made = check(cudaGraphInstantiateWithFlags(&executable, graph, 0), "cudaGraphInstantiate");
  if (graph != nullptr) (void)cudaGraphDestroy(graph);
  PEERLANE_RETURN_IF_ERROR(made);
  return std::unique_ptr<GpuGraph>(new GpuGraph(executable));
}

GpuGraph::~GpuGraph() {
  (void)cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(executable_));
}

Status GpuGraph::launch(const GpuStream& stream) const {
  return check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(executable_),
                               static_cast<cudaStream_t>(stream.handle())),
               "cudaGraphLaunch");
}

Result<std::unique_ptr<GpuBuffer>> GpuBuffer::create(uint64_t bytes) {
  void* data = nullptr;
  PEERLANE_RETURN_IF_ERROR(check(cudaMalloc(&data, bytes), "cudaMalloc"));
  std::unique_ptr<GpuBuffer> buffer(new GpuBuffer(static_cast<std::byte*>(data), bytes));
  PEERLANE_RETURN_IF_ERROR(check(cudaMemset(data, 0, bytes), "cudaMemset"));
  PEERLANE_RETURN_IF_ERROR(check(cudaDeviceSynchronize(), "cudaDeviceSynchronize"));
  return buffer;
}

GpuBuffer::~GpuBuffer() {
  (void)cudaFree(data_);
}

Status copyToGpu(const GpuStream& stream, void* to, const void* from, uint64_t bytes) {
  PEERLANE_RETURN_IF_ERROR(
      check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, queueOf(stream)),
            "copying to the GPU"));
  return stream.wait();
}

Status copyFromGpu(const GpuStream& stream, void* to, const void* from, uint64_t bytes) {
  PEERLANE_RETURN_IF_ERROR(
      check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, queueOf(stream)),
            "copying from the GPU"));
  return stream.wait();
}

Status setGpuBytes(const GpuStream& stream, void* data, uint8_t value, uint64_t bytes) {
  PEERLANE_RETURN_IF_ERROR(
      check(cudaMemsetAsync(data, value, bytes, queueOf(stream)), "cudaMemsetAsync"));
  return stream.wait();
}

Result<RawShare> shareGpuMemory(const void* data, Descriptor& file) {
  PEERLANE_RETURN_IF_ERROR(needDriver());
  RawShare share;
  CUdeviceptr base = 0;
  size_t bytes = 0;
  PEERLANE_RETURN_IF_ERROR(
      checkDriver(driver().addressRange(&base, &bytes, reinterpret_cast<CUdeviceptr>(data)),
                  "cuMemGetAddressRange"));
  share.bytes = bytes;
  share.offset = reinterpret_cast<CUdeviceptr>(data) - base;
  CUmemGenericAllocationHandle handle = 0;
  if (driver().retain(&handle, reinterpret_cast<void*>(base)) == CUDA_SUCCESS) {
    int fd = -1;
    const CUresult shared =
        driver().share(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    (void)driver().release(handle);
    PEERLANE_RETURN_IF_ERROR(checkDriver(shared, "cuMemExportToShareableHandle (raw window)"));
    file = Descriptor(fd);
    share.byDescriptor = true;
    return share;
  }
  cudaIpcMemHandle_t legacy{};
  PEERLANE_RETURN_IF_ERROR(
      check(cudaIpcGetMemHandle(&legacy, reinterpret_cast<void*>(base)), "cudaIpcGetMemHandle"));
  static_assert(sizeof(legacy) == sizeof(share.handle));
  std::memcpy(share.handle.data(), &legacy, sizeof(legacy));
  return share;
}

Result<std::unique_ptr<RawWindow>> RawWindow::open(const RawShare& share, int file, int gpu) {
  if (share.byDescriptor) {
    PEERLANE_RETURN_IF_ERROR(needDriver());
    CUmemGenericAllocationHandle handle = 0;
    PEERLANE_RETURN_IF_ERROR(
        checkDriver(driver().import(&handle, reinterpret_cast<void*>(static_cast<intptr_t>(file)),
                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                    "cuMemImportFromShareableHandle (raw window)"));
    PEERLANE_ASSIGN(std::byte* const base, place(handle, share.bytes, gpu));
    return std::unique_ptr<RawWindow>(new RawWindow(base, share));
  }
  cudaIpcMemHandle_t legacy{};
  std::memcpy(&legacy, share.handle.data(), sizeof(legacy));
  void* base = nullptr;
  PEERLANE_RETURN_IF_ERROR(
      check(cudaIpcOpenMemHandle(&base, legacy, cudaIpcMemLazyEnablePeerAccess),
            "cudaIpcOpenMemHandle (raw window)"));
  return std::unique_ptr<RawWindow>(new RawWindow(static_cast<std::byte*>(base), share));
}

RawWindow::~RawWindow() {
  if (!isMapped_) {
    (void)cudaIpcCloseMemHandle(base_);
    return;
  }
  (void)driver().unmap(reinterpret_cast<CUdeviceptr>(base_), bytes_);
  (void)driver().unreserve(reinterpret_cast<CUdeviceptr>(base_), bytes_);
}

Result<std::unique_ptr<PinnedPages>> PinnedPages::create(void* data, uint64_t bytes) {
  PEERLANE_RETURN_IF_ERROR(
      check(cudaHostRegister(data, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable),
            "cudaHostRegister"));
  void* onGpu = nullptr;
  const Status mapped =
      check(cudaHostGetDevicePointer(&onGpu, data, 0), "cudaHostGetDevicePointer");
  if (!mapped.isOk()) {
    (void)cudaHostUnregister(data);
    return mapped;
  }
  return std::unique_ptr<PinnedPages>(
      new PinnedPages(static_cast<std::byte*>(data), static_cast<std::byte*>(onGpu)));
}

PinnedPages::~PinnedPages() {
  (void)cudaHostUnregister(data_);
}

}  // namespace peerlane::bench
