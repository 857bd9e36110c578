// SPDX-License-Identifier: Apache-2.0
//
// The software GPU keeps the rules for which it exists: what waits, what is refused, what fails.
// Each test in a process of its own, for a device that has failed stays so.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>

#include "tests/fake/software_gpu_process.h"

namespace peerlane {
namespace {

// Work that ends when it is told to.
struct Gate {
  explicit Gate(cudaStream_t stream) {
    IS_OK(cudaLaunchHostFunc(
        stream,
        [](void* self) {
          while (!static_cast<Gate*>(self)->open) std::this_thread::yield();
        },
        this));
  }
  std::atomic<bool> open{false};
};

TEST(SoftwareGpu, FreeWaitsForTheDeviceAndAllocationDoesNot) {
  EXPECT_TRUE(inProcess([] {
    void *first = nullptr, *second = nullptr;
    IS_OK(cudaMalloc(&first, 4096));
    cudaStream_t stream = makeStream();
    Gate gate(stream);
    IS_OK(cudaMalloc(&second, 4096));
    EXPECT_EQ(cudaErrorNotReady, cudaStreamQuery(stream));
    std::atomic<bool> freed{false};
    std::thread freeing([&] {
      IS_OK(cudaFree(first));
      freed = true;
    });
    for (int i = 0; i < 100; ++i) std::this_thread::yield();
    EXPECT_FALSE(freed);
    gate.open = true;
    freeing.join();
    IS_OK(cudaStreamQuery(stream));
  }));
}

// Eight hardware queues: the ninth stream shares that of the first one, and no other does.
TEST(SoftwareGpu, StreamsShareQueues) {
  for (const bool isApart : {false, true})
    EXPECT_TRUE(inProcess([isApart] {
      if (isApart) setenv("SOFTWARE_GPU_PRIORITIES", "apart", 1);
      void* memory = nullptr;
      IS_OK(cudaMalloc(&memory, 16));
      cudaStream_t streams[9] = {};
      for (cudaStream_t& stream : streams) stream = makeStream();
      cudaStream_t urgent[8] = {};
      for (cudaStream_t& stream : urgent)
        IS_OK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, -5));
      // Behind its first piece of work stands the second, and holds up the queue.
      Gate gate(streams[0]);
      IS_OK(cudaMemsetAsync(memory, 1, 16, streams[0]));
      for (const cudaStream_t stream : streams) IS_OK(cudaMemsetAsync(memory, 2, 16, stream));
      for (const cudaStream_t stream : urgent) IS_OK(cudaMemsetAsync(memory, 3, 16, stream));
      for (int i = 1; i < 8; ++i) IS_OK(cudaStreamSynchronize(streams[i]));
      // The first of these was made as the tenth stream.
      for (int i = 0; i < (isApart ? 8 : 7); ++i) IS_OK(cudaStreamSynchronize(urgent[i]));
      for (int i = 0; i < 100; ++i) std::this_thread::yield();
      EXPECT_EQ(cudaErrorNotReady, cudaStreamQuery(streams[8]));
      EXPECT_EQ(isApart ? cudaSuccess : cudaErrorNotReady, cudaStreamQuery(urgent[7]));
      gate.open = true;
      IS_OK(cudaDeviceSynchronize());
      IS_OK(cudaStreamQuery(streams[8]));
    }));
}

// Who puts more work into a queue than it holds is stopped, also by what is on another stream.
TEST(SoftwareGpu, AFullQueueStopsWhoPutsMoreThere) {
  EXPECT_TRUE(inProcess([] {
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
    void* memory = nullptr;
    IS_OK(cudaMalloc(&memory, 16));
    const cudaStream_t stream = makeStream(), other = makeStream();
    Gate gate(stream);
    for (int i = 0; i < 1023; ++i) IS_OK(cudaMemsetAsync(memory, 1, 16, stream));
    IS_OK(cudaMemsetAsync(memory, 2, 16, other));
    std::atomic<bool> isThere{false};
    std::thread more([&] {
      IS_OK(cudaMemsetAsync(memory, 3, 16, other));
      isThere = true;
    });
    for (int i = 0; i < 100; ++i) std::this_thread::yield();
    EXPECT_FALSE(isThere);
    gate.open = true;
    more.join();
    IS_OK(cudaDeviceSynchronize());
  }));
}

TEST(SoftwareGpu, ACopyWithoutAccessFailsTheDevice) {
  EXPECT_TRUE(inProcess([] {
    void *near = nullptr, *far = nullptr;
    IS_OK(cudaSetDevice(1));
    IS_OK(cudaMalloc(&far, 4096));
    IS_OK(cudaSetDevice(0));
    IS_OK(cudaMalloc(&near, 4096));
    cudaStream_t stream = makeStream();
    IS_OK(cudaDeviceEnablePeerAccess(1, 0));
    IS_OK(cudaMemcpyAsync(near, far, 4096, cudaMemcpyDefault, stream));
    IS_OK(cudaStreamSynchronize(stream));
    IS_OK(cudaDeviceDisablePeerAccess(1));
    (void)cudaMemcpyAsync(near, far, 4096, cudaMemcpyDefault, stream);
    EXPECT_EQ(cudaErrorIllegalAddress, cudaStreamSynchronize(stream));
    EXPECT_EQ(cudaErrorIllegalAddress, cudaMalloc(&near, 4096));
  }));
}

TEST(SoftwareGpu, CapturesRefuseWhatWouldDisturbThem) {
  EXPECT_TRUE(inProcess([] {
    cudaStream_t stream = makeStream(), other = makeStream();
    cudaGraph_t graph = nullptr;
    void* memory = nullptr;
    IS_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    std::thread([] {
      void* elsewhere = nullptr;
      IS_OK(cudaMalloc(&elsewhere, 16));
    }).join();
    EXPECT_EQ(cudaErrorStreamCaptureUnsupported, cudaMalloc(&memory, 16));
    EXPECT_EQ(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(stream, &graph));
    IS_OK(cudaMalloc(&memory, 16));

    // Another stream takes part by an event, and must come back.
    cudaEvent_t forked = nullptr, joined = nullptr;
    IS_OK(cudaEventCreateWithFlags(&forked, cudaEventDisableTiming));
    IS_OK(cudaEventCreateWithFlags(&joined, cudaEventDisableTiming));
    for (const bool comesBack : {false, true}) {
      IS_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
      IS_OK(cudaEventRecord(forked, stream));
      IS_OK(cudaStreamWaitEvent(other, forked, 0));
      IS_OK(cudaMemsetAsync(memory, 7, 16, other));
      IS_OK(cudaEventRecord(joined, other));
      if (comesBack) {
        IS_OK(cudaStreamWaitEvent(stream, joined, 0));
      }
      EXPECT_EQ(comesBack ? cudaSuccess : cudaErrorStreamCaptureUnjoined,
                cudaStreamEndCapture(stream, &graph));
    }
    cudaGraphExec_t executable = nullptr;
    IS_OK(cudaGraphInstantiate(&executable, graph, 0));
    IS_OK(cudaGraphLaunch(executable, stream));
    IS_OK(cudaStreamSynchronize(stream));
    char found[16] = {};
    IS_OK(cudaMemcpy(found, memory, 16, cudaMemcpyDefault));
    EXPECT_EQ(7, found[15]);
  }));
}

// Memory of one process in another: by an IPC handle, and of a pool by its descriptor.
TEST(SoftwareGpu, MemoryTravels) {
  struct Travelling {
    cudaIpcMemHandle_t handle;
    cudaMemPoolPtrExportData pointer;
    int pool;
    pid_t pid;
  };
  int down[2], up[2];
  ASSERT_EQ(0, pipe(down));
  ASSERT_EQ(0, pipe(up));
  const pid_t owner = fork();
  if (owner == 0) {
    Travelling out{};
    void *memory = nullptr, *pooled = nullptr;
    IS_OK(cudaMalloc(&memory, 100));
    IS_OK(cudaMemset(memory, 3, 100));
    IS_OK(cudaIpcGetMemHandle(&out.handle, memory));
    void* again = nullptr;
    EXPECT_EQ(cudaErrorDeviceUninitialized,
              cudaIpcOpenMemHandle(&again, out.handle, cudaIpcMemLazyEnablePeerAccess));
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.handleTypes = cudaMemHandleTypePosixFileDescriptor;
    properties.location = {cudaMemLocationTypeDevice, 0};
    cudaMemPool_t pool = nullptr;
    IS_OK(cudaMemPoolCreate(&pool, &properties));
    IS_OK(cudaMallocFromPoolAsync(&pooled, 5000, pool, nullptr));
    IS_OK(cudaMemset(pooled, 4, 5000));
    IS_OK(cudaDeviceSynchronize());
    IS_OK(cudaMemPoolExportToShareableHandle(&out.pool, pool, cudaMemHandleTypePosixFileDescriptor,
                                             0));
    IS_OK(cudaMemPoolExportPointer(&out.pointer, pooled));
    void* plain = nullptr;
    IS_OK(cudaMallocAsync(&plain, 64, nullptr));
    cudaMemPoolPtrExportData none;
    EXPECT_EQ(cudaErrorInvalidValue, cudaMemPoolExportPointer(&none, plain));
    out.pid = getpid();
    char byte = 0;
    if (write(up[1], &out, sizeof(out)) != sizeof(out) || read(down[0], &byte, 1) != 1) _exit(2);
    IS_OK(cudaFreeAsync(pooled, nullptr));
    IS_OK(cudaFree(plain));
    IS_OK(cudaDeviceSynchronize());
    EXPECT_NE(cudaSuccess, cudaMemset(pooled, 0, 1));
    IS_OK(cudaMemPoolDestroy(pool));
    std::fflush(nullptr);
    std::_Exit(testing::Test::HasFailure() ? 1 : 0);
  }
  Travelling in{};
  ASSERT_EQ(ssize_t{sizeof(in)}, read(up[0], &in, sizeof(in)));
  EXPECT_TRUE(inProcess([&] {
    char found[5000] = {};
    void *opened = nullptr, *again = nullptr, *pooled = nullptr;
    IS_OK(cudaIpcOpenMemHandle(&opened, in.handle, cudaIpcMemLazyEnablePeerAccess));
    IS_OK(cudaIpcOpenMemHandle(&again, in.handle, cudaIpcMemLazyEnablePeerAccess));
    EXPECT_EQ(opened, again);
    IS_OK(cudaMemcpy(found, opened, 100, cudaMemcpyDefault));
    EXPECT_EQ(3, found[99]);
    IS_OK(cudaIpcCloseMemHandle(opened));
    IS_OK(cudaIpcCloseMemHandle(opened));
    EXPECT_NE(cudaSuccess, cudaIpcCloseMemHandle(opened));
    // A descriptor travels by a socket; here the test has another way.
    const std::string path = "/proc/" + std::to_string(in.pid) + "/fd/" + std::to_string(in.pool);
    const int fd = open(path.c_str(), O_RDWR);
    cudaMemPool_t pool = nullptr;
    IS_OK(cudaMemPoolImportFromShareableHandle(&pool, reinterpret_cast<void*>(intptr_t{fd}),
                                               cudaMemHandleTypePosixFileDescriptor, 0));
    IS_OK(cudaMemPoolImportPointer(&pooled, pool, &in.pointer));
    IS_OK(cudaMemcpy(found, pooled, 5000, cudaMemcpyDefault));
    EXPECT_EQ(4, found[4999]);
    // The other device has to be given access.
    IS_OK(cudaSetDevice(1));
    void* near = nullptr;
    IS_OK(cudaMalloc(&near, 5000));
    cudaMemAccessDesc access{};
    access.location = {cudaMemLocationTypeDevice, 1};
    access.flags = cudaMemAccessFlagsProtReadWrite;
    IS_OK(cudaMemPoolSetAccess(pool, &access, 1));
    IS_OK(cudaMemcpy(near, pooled, 5000, cudaMemcpyDefault));
    IS_OK(cudaDeviceSynchronize());
    access.flags = cudaMemAccessFlagsProtNone;
    IS_OK(cudaMemPoolSetAccess(pool, &access, 1));
    (void)cudaMemcpy(near, pooled, 5000, cudaMemcpyDefault);
    EXPECT_EQ(cudaErrorIllegalAddress, cudaDeviceSynchronize());
  }));
  ASSERT_EQ(1, write(down[1], "x", 1));
  int status = 0;
  ASSERT_EQ(owner, waitpid(owner, &status, 0));
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

#define IS_DONE(call) EXPECT_EQ(CUDA_SUCCESS, (call))

CUresult createFor(unsigned types, CUmemGenericAllocationHandle& made) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  properties.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(types);
  return cuMemCreate(&made, size_t{2} << 20, &properties, 0);
}

CUresult importOf(CUmemFabricHandle handle) {
  CUmemGenericAllocationHandle imported = 0;
  const CUresult result =
      cuMemImportFromShareableHandle(&imported, &handle, CU_MEM_HANDLE_TYPE_FABRIC);
  if (result == CUDA_SUCCESS) {
    IS_DONE(cuMemRelease(imported));
  }
  return result;
}

TEST(SoftwareGpu, AFabricHandleLeadsToItsMemoryWhileThatIsThere) {
  EXPECT_TRUE(inProcess([] {
    IS_DONE(cuInit(0));
    CUmemGenericAllocationHandle fabric = 0, file = 0;
    IS_DONE(createFor(CU_MEM_HANDLE_TYPE_FABRIC, fabric));
    IS_DONE(createFor(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, file));
    // Each only as what it was made for.
    CUmemFabricHandle handle{};
    int fd = -1;
    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE,
              cuMemExportToShareableHandle(&handle, file, CU_MEM_HANDLE_TYPE_FABRIC, 0));
    EXPECT_EQ(
        CUDA_ERROR_INVALID_VALUE,
        cuMemExportToShareableHandle(&fd, fabric, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    IS_DONE(cuMemExportToShareableHandle(&handle, fabric, CU_MEM_HANDLE_TYPE_FABRIC, 0));
    IS_DONE(importOf(handle));
    // One that leads to a file of another memory.
    CUmemFabricHandle other = handle;
    IS_DONE(cuMemExportToShareableHandle(&fd, file, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    std::memcpy(&other.data[sizeof(pid_t)], &fd, sizeof(fd));
    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, importOf(other));
    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, importOf({}));
    for (unsigned char& byte : other.data) byte = 0xff;
    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, importOf(other));
    // Memory that is freed.
    IS_DONE(cuMemRelease(fabric));
    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, importOf(handle));
  }));
}

TEST(SoftwareGpu, FabricHandlesFailWhenToldTo) {
  EXPECT_TRUE(inProcess([] {
    IS_DONE(cuInit(0));
    const auto isOffered = [] {
      int value = -1;
      IS_DONE(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, 0));
      return value;
    };
    CUmemGenericAllocationHandle made = 0, none = 0;
    CUmemFabricHandle handle{};
    EXPECT_EQ(1, isOffered());
    IS_DONE(createFor(CU_MEM_HANDLE_TYPE_FABRIC, made));
    IS_DONE(cuMemExportToShareableHandle(&handle, made, CU_MEM_HANDLE_TYPE_FABRIC, 0));
    setenv("SOFTWARE_GPU_FABRIC", "no-export", 1);
    EXPECT_EQ(1, isOffered());
    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE,
              cuMemExportToShareableHandle(&handle, made, CU_MEM_HANDLE_TYPE_FABRIC, 0));
    setenv("SOFTWARE_GPU_FABRIC", "no-channel", 1);
    EXPECT_EQ(1, isOffered());
    EXPECT_EQ(CUDA_ERROR_NOT_PERMITTED, createFor(CU_MEM_HANDLE_TYPE_FABRIC, none));
    EXPECT_EQ(CUDA_ERROR_NOT_PERMITTED, importOf(handle));
    setenv("SOFTWARE_GPU_FABRIC", "absent", 1);
    EXPECT_EQ(0, isOffered());
    EXPECT_EQ(CUDA_ERROR_NOT_SUPPORTED, createFor(CU_MEM_HANDLE_TYPE_FABRIC, none));
    EXPECT_EQ(CUDA_ERROR_NOT_SUPPORTED, importOf(handle));
  }));
}

// An owner that frees memory of a pool before its importer does fails its device; and what was
// imported twice is gone with the first free.
TEST(SoftwareGpu, MemoryOfAPoolIsFreedByItsImporterFirst) {
  for (const bool inOrder : {true, false}) {
    int down[2], up[2];
    ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM, 0, down));
    ASSERT_EQ(0, pipe(up));
    const auto wait = [](int fd) {
      char byte = 0;
      alarm(20);
      EXPECT_EQ(1, read(fd, &byte, 1));
    };
    struct Travelling {
      cudaMemPoolPtrExportData pointer;
      int pool;
      pid_t pid;
    };
    const pid_t owner = fork();
    if (owner == 0) {
      cudaMemPoolProps properties{};
      properties.allocType = cudaMemAllocationTypePinned;
      properties.handleTypes = cudaMemHandleTypePosixFileDescriptor;
      properties.location = {cudaMemLocationTypeDevice, 0};
      cudaMemPool_t pool = nullptr;
      IS_OK(cudaMemPoolCreate(&pool, &properties));
      void *first = nullptr, *second = nullptr;
      IS_OK(cudaMallocFromPoolAsync(&first, 5000, pool, nullptr));
      IS_OK(cudaMallocFromPoolAsync(&second, 5000, pool, nullptr));
      Travelling out{{}, -1, getpid()};
      EXPECT_EQ(cudaErrorInvalidValue, cudaMemPoolExportPointer(&out.pointer, second))
          << "before the pool";
      IS_OK(cudaMemPoolExportToShareableHandle(&out.pool, pool,
                                               cudaMemHandleTypePosixFileDescriptor, 0));
      IS_OK(cudaMemPoolExportPointer(&out.pointer, second));
      if (write(up[1], &out, sizeof(out)) != sizeof(out)) _exit(2);
      wait(down[1]);
      IS_OK(cudaFree(first));  // nobody imported it
      const cudaError_t freed = cudaFree(second);
      EXPECT_EQ(inOrder ? cudaSuccess : cudaErrorIllegalAddress, freed);
      EXPECT_EQ(1, write(down[1], "y", 1));
      std::fflush(nullptr);
      std::_Exit(testing::Test::HasFailure() ? 1 : 0);
    }
    Travelling in{};
    ASSERT_EQ(ssize_t{sizeof(in)}, read(up[0], &in, sizeof(in)));
    EXPECT_TRUE(inProcess([&] {
      const std::string path = "/proc/" + std::to_string(in.pid) + "/fd/" + std::to_string(in.pool);
      const int fd = open(path.c_str(), O_RDWR);
      cudaMemPool_t pool = nullptr;
      IS_OK(cudaMemPoolImportFromShareableHandle(&pool, reinterpret_cast<void*>(intptr_t{fd}),
                                                 cudaMemHandleTypePosixFileDescriptor, 0));
      void *pointer = nullptr, *same = nullptr;
      IS_OK(cudaMemPoolImportPointer(&pointer, pool, &in.pointer));
      IS_OK(cudaMemPoolImportPointer(&same, pool, &in.pointer));
      EXPECT_EQ(pointer, same);
      if (inOrder) {
        IS_OK(cudaFree(pointer));
        EXPECT_NE(cudaSuccess, cudaFree(same));
      }
      EXPECT_EQ(1, write(down[0], "x", 1));
      wait(down[0]);  // until the owner has freed it
    }));
    close(down[0]);
    close(down[1]);
    int status = 0;
    ASSERT_EQ(owner, waitpid(owner, &status, 0));
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << inOrder;
  }
}

}  // namespace
}  // namespace peerlane
