// SPDX-License-Identifier: Apache-2.0
//
// Software GPU: what of the CUDA runtime and driver this library calls, on host memory and threads,
// so that the host's side of everything with GPUs is tested where there is none. Devices and
// addresses: how many there are (environment SOFTWARE_GPUS, else none), which one a thread uses,
// what lies where and who may touch it. Not a model of speed, and its memory order is the CPU's.
// Any thread may call anything here.
#pragma once

#include <cuda_runtime_api.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace peerlane::softgpu {

inline constexpr int kMostDevices = 8;
inline constexpr size_t kGranule = size_t{2} << 20;
inline constexpr size_t kDeviceBytes = size_t{8} << 30;
inline constexpr int kMultiprocessors = 16;

int deviceCount();
// As the real driver, it does not start where /proc is not that of the process's PID namespace.
bool isRightProc();
inline bool isDevice(int device) {
  return device >= 0 && device < deviceCount();
}

// --- The caller's thread ---

// Devices of the contexts that are pushed, the last one current; -1: none.
int currentContext();
// As the runtime sees it: device 0 where nothing was chosen.
int currentDevice();
void setDevice(int device);
void pushContext(int device);
int popContext();  // -1: there was none
// The runtime made a context on the device: when it was chosen, or by itself where none was.
bool hasRuntimeContext(int device);

// --- Failure: as on the real thing, a device that has failed stays so ---

// What the driver calls back must not call it.
void enterCallback();
bool isInCallback();

void failDevice(int device, const std::string& why);
cudaError_t healthOf(int device);

// --- Memory ---

// Bytes of a device: a file of memory, which goes when nobody has it any more, in any process.
struct Physical {
  Physical() = default;
  ~Physical();
  Physical(const Physical&) = delete;
  int fd = -1;
  off_t offset = 0;  // in its file: of a pool that travels, all allocations lie in the pool's
  size_t bytes = 0;  // as asked for
  size_t mappedBytes = 0;
  int device = 0;
  unsigned handleTypes = 0;  // as which it may be exported
  std::string name;          // unique in the machine; what a handle must match
  bool isOurs = false;       // made by this process
};

// Counts what a device has left. False: no room for it.
bool takeRoom(int device, size_t bytes);
// Null with `error` set when the device has no room.
std::shared_ptr<Physical> makePhysical(int device, size_t bytes, unsigned handleTypes,
                                       cudaError_t& error);
// A file of memory with a name that nobody else has, which begins as given; -1: there is none.
int makeNamedFile(const std::string& prefix, std::string& name);
// The name of such a file; empty: it is none.
std::string nameOfFile(int fd);
// Takes the descriptor. Null: it is none of a device's memory.
std::shared_ptr<Physical> adoptPhysical(int fd);
size_t usedBytes(int device);

enum class MemoryKind {
  kDevice,      // cudaMalloc
  kMapped,      // VMM
  kOpened,      // of another process, by an IPC handle
  kManaged,     // cudaMallocManaged
  kHost,        // cudaHostAlloc
  kRegistered,  // cudaHostRegister
  kPool,        // cudaMallocAsync, or imported from a pool
};

// 64 bytes that lead to a file of memory of a process, and to nothing once that is freed: where its
// descriptor lies, and what must be found there. A handle leads to a process of whichever namespace
// where SOFTWARE_GPU_PROC names a /proc that shows both.
struct HandleContent {
  pid_t pid;
  int fd;
  char name[56];
};
static_assert(sizeof(HandleContent) == 64);
// The number of this process, as such handles have it.
pid_t ownPid();
// False: its name is too long.
bool makeHandle(const Physical& physical, HandleContent& content);
// Null: there is no such memory any more, or never was.
std::shared_ptr<Physical> followHandle(const HandleContent& content);
// SOFTWARE_GPU_FABRIC in the environment says how fabric handles fail: "absent", the devices have
// none; "no-channel", memory for them is not created, and none is imported; "no-export", it is
// created, and not exported.
bool fabricFails(const char* how);
// SOFTWARE_GPU_DMA_BUF=absent: as a driver that exports none.
bool hasNoDmaBuf();

// What cudaMallocAsync takes memory from.
struct Pool {
  Pool() = default;
  ~Pool();
  Pool(const Pool&) = delete;
  int device = 0;
  unsigned handleTypes = 0;
  std::atomic<uint32_t> access{0};  // a bit for each device
  int fd = -1;  // of one that travels: where its memory lies, and what it is known by
  std::string name;
  std::atomic<off_t> end{0};  // of what was taken from the file
  std::atomic<bool> isExported{false};
  bool isImported = false;
};

struct Allocation {
  uintptr_t base = 0;
  size_t bytes = 0;
  MemoryKind kind = MemoryKind::kDevice;
  int device = 0;
  uint64_t id = 0;  // never used again
  std::shared_ptr<Physical> physical;
  size_t mappedBytes = 0;
  unsigned flags = 0;
  std::atomic<bool> isSynchronous{false};  // SYNC_MEMOPS
  std::atomic<uint32_t> access{0};         // a bit for each device that was given access
  int opens = 0;                           // kOpened; under the caller's lock
  std::shared_ptr<Pool> pool;

  void* at() const { return reinterpret_cast<void*>(base); }
  bool isHost() const { return kind == MemoryKind::kHost || kind == MemoryKind::kRegistered; }
};
using AllocationPtr = std::shared_ptr<Allocation>;

// Maps `physical` somewhere (or at `base`) and enters it. Null: no address space.
AllocationPtr mapPhysical(const std::shared_ptr<Physical>& physical, MemoryKind kind,
                          void* base = nullptr, const std::shared_ptr<Pool>& pool = nullptr);
// Enters what is mapped already. False: something of it is known already.
bool enter(const AllocationPtr& allocation);
AllocationPtr enterHost(void* base, size_t bytes, MemoryKind kind, unsigned flags);
// Takes it out; the caller unmaps.
void forget(const Allocation& allocation);
void unmap(const Allocation& allocation);

// cudaFree of memory of a pool, which waits for nothing.
void freeOfPool(const AllocationPtr& allocation);

// What `address` lies in; null: memory that CUDA does not know.
AllocationPtr find(const void* address);

void enablePeer(int device, int peer, bool enabled);
bool isPeerEnabled(int device, int peer);
bool canReach(int device, const Allocation& allocation);
// All of it is known and can be touched by what runs on `device`.
bool canReach(int device, const void* address, size_t bytes);

// What engines and kernels move and fill. Hidden from the thread sanitizer but for cudaHostAlloc
// and pageable memory: what orders accesses to the others is often another process, which it does
// not see.
void moveBytes(void* to, const void* from, size_t bytes);
void fillBytes(void* to, int value, size_t bytes);

}  // namespace peerlane::softgpu
