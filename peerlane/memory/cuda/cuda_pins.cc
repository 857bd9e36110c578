// SPDX-License-Identifier: Apache-2.0
#include "peerlane/memory/cuda/cuda_pins.h"

#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "peerlane/core/mutex.h"
#include "peerlane/memory/cuda/cuda_reclaimer.h"
#include "peerlane/os/cuda_driver.h"

namespace peerlane {
namespace {

using Gpu = std::shared_ptr<const cuda::PrimaryContext>;

class Pins {
 public:
  static Pins& instance() {
    static auto* const only = new Pins;  // outlives the reclaimer's last closure
    return *only;
  }

  // Counts one more user of each range that covers part of [begin, end), which is page-aligned.
  // After an error `taken` holds the ranges that were counted before it.
  Status take(uintptr_t begin, uintptr_t end, std::vector<uintptr_t>& taken) {
    const MutexLock lock(mutex_);
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (closingIn(begin, end))
      if (!changed_.waitUntil(mutex_, deadline) && closingIn(begin, end))
        return Status(Code::kUnavailable,
                      "the memory is just being unpinned, which waits for a GPU; try again");
    uintptr_t at = begin;
    while (at < end) {
      auto next = ranges_.upper_bound(at);
      if (next != ranges_.begin() && std::prev(next)->second.end > at) {
        const auto known = std::prev(next);
        ++known->second.users;
        taken.push_back(known->first);
        at = known->second.end;
        continue;
      }
      const uintptr_t gapEnd = next == ranges_.end() ? end : std::min(end, next->first);
      PEERLANE_RETURN_IF_ERROR(add(at, gapEnd, taken));
      at = gapEnd;
    }
    return Status::ok();
  }

  void drop(const std::vector<uintptr_t>& ranges, const Gpu& gpu, std::function<void()> done) {
    bool last = false;
    {
      const MutexLock lock(mutex_);
      for (const uintptr_t range : ranges) last = --ranges_.at(range).users == 0 || last;
    }
    if (!last) {
      if (done) done();
      return;
    }
    CudaReclaimer::instance().add(gpu, [this, ranges, done = std::move(done)] {
      for (const uintptr_t range : ranges) close(range);
      if (done) done();
    });
  }

 private:
  static constexpr std::chrono::seconds kPatience{1};
  struct Range {
    uintptr_t end = 0;
    size_t users = 0;
    bool closing = false;
  };

  bool closingIn(uintptr_t begin, uintptr_t end) const PEERLANE_REQUIRES(mutex_) {
    return std::any_of(ranges_.begin(), ranges_.end(), [&](const auto& entry) {
      return entry.second.closing && entry.first < end && entry.second.end > begin;
    });
  }

  Status add(uintptr_t begin, uintptr_t end, std::vector<uintptr_t>& taken)
      PEERLANE_REQUIRES(mutex_) {
    auto* const pages = reinterpret_cast<void*>(begin);
    cudaError_t error = cudaHostRegister(pages, end - begin, cudaHostRegisterPortable);
    // For memory that is mapped here for reading alone, such as a peer's without the right to
    // write.
    if (error == cudaErrorInvalidValue) {
      (void)cudaGetLastError();
      error =
          cudaHostRegister(pages, end - begin, cudaHostRegisterPortable | cudaHostRegisterReadOnly);
    }
    if (error == cudaSuccess) {
      ranges_[begin] = {end, 1, false};
      taken.push_back(begin);
      return Status::ok();
    }
    (void)cudaGetLastError();
    if (error == cudaErrorHostMemoryAlreadyRegistered)
      return Status(Code::kInvalidArgument,
                    "a part of the range, not all of it, was pinned by the program itself "
                    "(cudaHostRegister); register ranges that are pinned whole or not at all");
    return cuda::check(error, "cudaHostRegister")
        .withContext("pinning " + std::to_string(end - begin) + " bytes of host memory");
  }

  // Unpins a range, unless it has a user again. The driver's call may block, so it is made without
  // the lock.
  void close(uintptr_t begin) {
    {
      const MutexLock lock(mutex_);
      const auto found = ranges_.find(begin);
      if (found == ranges_.end() || found->second.users != 0 || found->second.closing) return;
      found->second.closing = true;
    }
    (void)cudaHostUnregister(reinterpret_cast<void*>(begin));
    const MutexLock lock(mutex_);
    ranges_.erase(begin);
    changed_.notifyAll();
  }

  Mutex mutex_;
  Condition changed_;
  std::map<uintptr_t, Range> ranges_ PEERLANE_GUARDED_BY(mutex_);  // by their begin
};

class CudaPin final : public DevicePin {
 public:
  CudaPin(std::vector<uintptr_t> ranges, Gpu gpu)
      : ranges_(std::move(ranges)), gpu_(std::move(gpu)) {}
  ~CudaPin() override {
    if (!ended_) Pins::instance().drop(ranges_, gpu_, nullptr);
  }

 private:
  void whenEnded(std::function<void()> done) override {
    ended_ = true;
    Pins::instance().drop(ranges_, gpu_, std::move(done));
  }

  const std::vector<uintptr_t> ranges_;
  const Gpu gpu_;
  bool ended_ = false;
};

// Pinned by the program, from its first byte to its last in one piece.
bool isPinnedByUser(const std::byte* address, size_t bytes) {
  const auto bufferAt = [](const std::byte* at) -> unsigned long long {
    CUmemorytype type{};
    unsigned long long buffer = 0;
    CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                   CU_POINTER_ATTRIBUTE_BUFFER_ID};
    void* values[] = {&type, &buffer};
    if (cuda::api().cuPointerGetAttributes(std::size(names), names, values,
                                           reinterpret_cast<CUdeviceptr>(at)) != CUDA_SUCCESS ||
        type != CU_MEMORYTYPE_HOST)
      return 0;
    return buffer;
  };
  const unsigned long long first = bufferAt(address);
  return first != 0 && first == bufferAt(address + bytes - 1);
}

}  // namespace

Result<std::unique_ptr<DevicePin>> pinForCuda(std::byte* address, size_t bytes, const Gpu& gpu) {
  PEERLANE_ASSIGN(const std::vector<cuda::GpuFacts> facts, cuda::gpus());
  if (!facts[static_cast<size_t>(gpu->gpu())].hostPointersValid)
    return Status(Code::kNotSupported, "cuda:" + std::to_string(gpu->gpu()) +
                                           " has addresses of its own for host memory");
  const cuda::CurrentContext current(*gpu);
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = reinterpret_cast<uintptr_t>(address) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(address) + bytes + page - 1) / page * page;
  std::vector<uintptr_t> taken;
  const Status status = Pins::instance().take(begin, end, taken);
  auto pin = std::make_unique<CudaPin>(std::move(taken), gpu);
  if (status.isOk()) return std::unique_ptr<DevicePin>(std::move(pin));
  pin.reset();  // the ranges pinned before the error are unpinned by the reclaimer
  if (isPinnedByUser(address, bytes))
    return std::unique_ptr<DevicePin>(std::make_unique<CudaPin>(std::vector<uintptr_t>(), gpu));
  return status;
}

}  // namespace peerlane
