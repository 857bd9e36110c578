// SPDX-License-Identifier: Apache-2.0
#include "peerlane/memory/legacy_probe.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "peerlane/memory/cuda_mapping.h"
#include "peerlane/memory/cuda_reclaimer.h"
#include "peerlane/os/cuda_driver.h"
#include "peerlane/os/process.h"

namespace peerlane {
namespace {

using cuda::check;

constexpr size_t kNumberBytes = 16;
using Number = std::array<std::byte, kNumberBytes>;
// A copy may stand behind a stream that waits for a peer, in the hardware queue that both share.
constexpr std::chrono::milliseconds kPatience{250};

struct Layout {
  cudaIpcMemHandle_t handle;
  uint64_t identity;
  Number number;
};
static_assert(sizeof(Layout) == kLegacyProbeBytes);

using Held = std::shared_ptr<const cuda::PrimaryContext>;

// Copies between memory of a GPU and `number`, one way or the other.
Status copyNow(std::byte* device, Number& number, bool toDevice, const Held& gpu) {
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

// The same by a thread of its own, which alone waits where a hardware queue takes no more; or gives
// up. `keep` stays as long as the copy may still be under way.
Status copy(std::byte* device, Number& number, bool toDevice, const cuda::PrimaryContext& gpu,
            std::shared_ptr<void> keep) {
  PEERLANE_ASSIGN(const Held held, cuda::PrimaryContext::retainShared(gpu.gpu()));
  auto copying = std::make_shared<std::packaged_task<std::pair<Status, Number>()>>(
      [device, number, toDevice, keep = std::move(keep), held]() mutable {
        Status status = copyNow(device, number, toDevice, held);
        return std::pair(std::move(status), number);
      });
  auto copied = copying->get_future();
  std::thread thread([copying = std::move(copying)] { (*copying)(); });
  if (copied.wait_for(kPatience) != std::future_status::ready) {
    thread.detach();
    return Status(Code::kUnavailable, "the GPU was too busy to copy " +
                                          std::to_string(kNumberBytes) + " bytes in " +
                                          std::to_string(kPatience.count()) + " ms");
  }
  // It also lets go of the GPU, which must not happen while the process is coming to its end.
  thread.join();
  auto [status, found] = copied.get();
  if (status.isOk()) number = found;
  return status;
}

struct Probes {
  std::mutex mutex;
  struct Entry {
    std::byte* address = nullptr;
    LegacyProbe probe{};
  };
  std::map<int, Entry> byGpu;  // under mutex
};
Probes& probes() {
  static auto* const only = new Probes;
  return *only;
}

// Where a number is; freed by whoever had it last, be it a copy that nobody waits for any more.
struct NumberPlace {
  NumberPlace(void* made, Held of) : address(static_cast<std::byte*>(made)), gpu(std::move(of)) {}
  ~NumberPlace() {
    if (!isKept) CudaReclaimer::instance().add(gpu, [memory = address] { (void)cudaFree(memory); });
  }
  NumberPlace(const NumberPlace&) = delete;
  NumberPlace& operator=(const NumberPlace&) = delete;

  std::byte* const address;
  const Held gpu;
  std::atomic<bool> isKept{false};
};

Result<LegacyProbe> makeProbe(const std::shared_ptr<NumberPlace>& place,
                              const cuda::PrimaryContext& gpu) {
  std::byte* const address = place->address;
  Layout layout{};
  PEERLANE_RETURN_IF_ERROR(fillRandom(layout.number));
  Number number = layout.number;
  PEERLANE_RETURN_IF_ERROR(copy(address, number, /*toDevice=*/true, gpu, place));
  PEERLANE_RETURN_IF_ERROR(
      check(cudaIpcGetMemHandle(&layout.handle, address), "cudaIpcGetMemHandle"));
  layout.identity = cuda::identityOf(address);
  LegacyProbe probe;
  std::memcpy(probe.data(), &layout, sizeof(layout));
  return probe;
}

// The number that is where the handle leads.
Result<Number> look(const Layout& layout, const cuda::PrimaryContext& gpu) {
  const cuda::CurrentContext current(gpu);
  PEERLANE_ASSIGN(auto mapping,
                  CudaMapping::importHandle(std::as_bytes(std::span(&layout.handle, 1)),
                                            layout.identity, kNumberBytes, gpu));
  Number found{};
  std::byte* const address = mapping->data();
  PEERLANE_RETURN_IF_ERROR(copy(address, found, /*toDevice=*/false, gpu, std::move(mapping)));
  return found;
}

}  // namespace

Result<LegacyProbe> legacyProbeOn(const cuda::PrimaryContext& gpu) {
  Probes& all = probes();
  const std::lock_guard lock(all.mutex);
  Probes::Entry& entry = all.byGpu[gpu.gpu()];
  Layout known{};
  std::memcpy(&known, entry.probe.data(), sizeof(known));
  // It goes when nobody holds the primary context any more.
  if (entry.address != nullptr && cuda::identityOf(entry.address) == known.identity)
    return entry.probe;
  const cuda::CurrentContext current(gpu);
  PEERLANE_ASSIGN(Held held, cuda::PrimaryContext::retainShared(gpu.gpu()));
  void* address = nullptr;
  PEERLANE_RETURN_IF_ERROR(check(cudaMalloc(&address, kNumberBytes), "cudaMalloc"));
  const auto place = std::make_shared<NumberPlace>(address, std::move(held));
  auto made = makeProbe(place, gpu);
  if (made.isOk()) {
    place->isKept = true;
    entry = {place->address, *made};
  }
  return made;
}

Status tryLegacyProbe(const LegacyProbe& probe, const cuda::Gpus& gpus) {
  Layout layout;
  std::memcpy(&layout, probe.data(), sizeof(layout));
  Status why;
  for (const auto& gpu : gpus) {
    auto found = look(layout, *gpu);
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
