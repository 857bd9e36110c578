// SPDX-License-Identifier: Apache-2.0
#include "peerlane/memory/cuda/legacy_probe.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "peerlane/core/mutex.h"
#include "peerlane/memory/cuda/cuda_mapping.h"
#include "peerlane/memory/cuda/cuda_reclaimer.h"
#include "peerlane/os/cuda_driver.h"
#include "peerlane/os/process.h"
#include "peerlane/os/thread.h"

namespace peerlane {
namespace {

using cuda::check;

constexpr size_t kNumberBytes = 16;
using Number = std::array<std::byte, kNumberBytes>;
// Calls of the driver that may have to wait for a stream that waits for a peer: a copy waits in the
// hardware queue that it shares with the stream, and the driver neither makes nor opens memory
// while another thread is blocked because that queue is full (docs/gotchas.md).
constexpr std::chrono::milliseconds kPatience{500};

struct Layout {
  cudaIpcMemHandle_t handle;
  uint64_t identity;
  Number number;
};
static_assert(sizeof(Layout) == kLegacyProbeBytes);

using GpuContext = std::shared_ptr<const cuda::PrimaryContext>;

// Copies between memory of a GPU and `number`, one way or the other.
Status copyNow(std::byte* device, Number& number, bool toDevice, const GpuContext& gpu) {
  const cuda::CurrentContext current(*gpu);
  void* pinned = nullptr;
  PEERLANE_RETURN_IF_ERROR(check(cudaHostAlloc(&pinned, kNumberBytes, 0), "cudaHostAlloc"));
  cudaStream_t stream = nullptr;
  Status status =
      check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  if (status.isOk()) {
    std::memcpy(pinned, number.data(), kNumberBytes);
    status = check(cudaMemcpyAsync(toDevice ? static_cast<void*>(device) : pinned,
                                   toDevice ? pinned : static_cast<void*>(device), kNumberBytes,
                                   cudaMemcpyDefault, stream),
                   "cudaMemcpyAsync");
    if (status.isOk()) status = check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    if (status.isOk()) std::memcpy(number.data(), pinned, kNumberBytes);
    (void)cudaStreamDestroy(stream);
  }
  (void)cudaGetLastError();
  CudaReclaimer::instance().add(gpu, [pinned] { (void)cudaFreeHost(pinned); });
  return status;
}

// The result of `work`, which runs on a thread of its own, so that only that thread is blocked
// where the driver blocks. After kPatience the caller gives up; `work` then ends whenever it can,
// and owns everything that it uses.
template <typename T>
Result<T> within(const char* what, std::function<Result<T>()> work) {
  auto task = std::make_shared<std::packaged_task<Result<T>()>>(std::move(work));
  auto done = task->get_future();
  PEERLANE_ASSIGN(std::thread thread,
                  startThread("a look at GPU memory", [task = std::move(task)] { (*task)(); }));
  if (done.wait_for(kPatience) != std::future_status::ready) {
    thread.detach();
    return Status(Code::kUnavailable, std::string("the GPU was too busy to ") + what + " " +
                                          std::to_string(kNumberBytes) + " bytes in " +
                                          std::to_string(kPatience.count()) + " ms");
  }
  // The thread also releases the GPU, which must not happen while the process is ending.
  thread.join();
  return done.get();
}

struct Probes {
  Mutex mutex;
  struct Entry {
    std::byte* address = nullptr;
    LegacyProbe probe{};
  };
  std::map<int, Entry> byGpu PEERLANE_GUARDED_BY(mutex);
};
Probes& probes() {
  static auto* const only = new Probes;
  return *only;
}

// Frees the memory unless it is kept.
struct NumberPlace {
  NumberPlace(void* made, GpuContext of)
      : address(static_cast<std::byte*>(made)), gpu(std::move(of)) {}
  ~NumberPlace() {
    if (!isKept) CudaReclaimer::instance().add(gpu, [memory = address] { (void)cudaFree(memory); });
  }
  NumberPlace(const NumberPlace&) = delete;
  NumberPlace& operator=(const NumberPlace&) = delete;

  std::byte* const address;
  const GpuContext gpu;
  std::atomic<bool> isKept{false};
};

struct MadeProbe {
  std::shared_ptr<NumberPlace> place;
  LegacyProbe probe{};
};

Result<MadeProbe> makeProbe(const GpuContext& gpu) {
  const cuda::CurrentContext current(*gpu);
  void* memory = nullptr;
  PEERLANE_RETURN_IF_ERROR(check(cudaMalloc(&memory, kNumberBytes), "cudaMalloc"));
  MadeProbe made{std::make_shared<NumberPlace>(memory, gpu)};
  Layout layout{};
  PEERLANE_RETURN_IF_ERROR(fillRandom(layout.number));
  Number number = layout.number;
  PEERLANE_RETURN_IF_ERROR(copyNow(made.place->address, number, /*toDevice=*/true, gpu));
  PEERLANE_RETURN_IF_ERROR(
      check(cudaIpcGetMemHandle(&layout.handle, memory), "cudaIpcGetMemHandle"));
  layout.identity = cuda::identityOf(memory);
  std::memcpy(made.probe.data(), &layout, sizeof(layout));
  return made;
}

// The number in the memory that the handle leads to.
Result<Number> look(const Layout& layout, const GpuContext& gpu) {
  const cuda::CurrentContext current(*gpu);
  PEERLANE_ASSIGN(const auto mapping,
                  CudaMapping::importHandle(std::as_bytes(std::span(&layout.handle, 1)),
                                            layout.identity, kNumberBytes, *gpu));
  Number found{};
  PEERLANE_RETURN_IF_ERROR(copyNow(mapping->data(), found, /*toDevice=*/false, gpu));
  return found;
}

}  // namespace

Result<LegacyProbe> legacyProbeOn(const cuda::PrimaryContext& gpu) {
  Probes& all = probes();
  const MutexLock lock(all.mutex);
  Probes::Entry& entry = all.byGpu[gpu.gpu()];
  Layout known{};
  std::memcpy(&known, entry.probe.data(), sizeof(known));
  // The memory ends when no object holds the primary context any more.
  if (entry.address != nullptr && cuda::identityOf(entry.address) == known.identity)
    return entry.probe;
  PEERLANE_ASSIGN(GpuContext held, cuda::PrimaryContext::retainShared(gpu.gpu()));
  PEERLANE_ASSIGN(const MadeProbe made,
                  within<MadeProbe>("make and fill", [held] { return makeProbe(held); }));
  made.place->isKept = true;
  entry = {made.place->address, made.probe};
  return made.probe;
}

Status tryLegacyProbe(const LegacyProbe& probe, const cuda::Gpus& gpus) {
  Layout layout;
  std::memcpy(&layout, probe.data(), sizeof(layout));
  Status why;
  for (const auto& gpu : gpus) {
    auto found = within<Number>("open and read", [layout, gpu] { return look(layout, gpu); });
    if (found.isOk() && *found == layout.number) return Status::ok();
    if (why.isOk())
      why = found.isOk() ? Status(Code::kNotSupported, "one was opened and led to other memory")
                         : Status(found.status().code() == Code::kUnavailable ? Code::kUnavailable
                                                                              : Code::kNotSupported,
                                  std::string(found.status().message()));
  }
  return why.withContext("legacy CUDA IPC handles do not cross PID namespaces here");
}

}  // namespace peerlane
