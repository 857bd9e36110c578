// SPDX-License-Identifier: Apache-2.0
//
// The CUDA driver as the rest of the library sees it: which GPUs there are, and how a thread makes
// one current for a while. Free of CUDA's own headers, and there in every build: one without CUDA,
// or a machine without a driver, answers kNotSupported with the reason. Thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "peerlane/core/status.h"

namespace peerlane::cuda {

struct GpuFacts {
  int index = 0;  // as the driver counts in this process (CUDA_VISIBLE_DEVICES)
  std::string name;
  std::array<uint8_t, 16> uuid{};  // the same in every process
  std::string busId;               // "0000:17:00.0"
  uint64_t memoryBytes = 0;
  int multiprocessors = 0;
  int majorVersion = 0;  // compute capability
  int minorVersion = 0;
  bool exportsDescriptors = false;  // VMM allocations travel as file descriptors
  bool fabricHandles = false;       // as the driver says; memory/fabric_probe.h tries it
  bool hostPointersValid = false;   // pinned host memory has one address for both sides
};

// Every visible GPU. Initialises the driver, makes no context and uses no device memory. Errors:
// kNotSupported (no CUDA in this build, no driver, one that is too old, no GPU).
Result<std::vector<GpuFacts>> gpus();

// The GPU that the calling thread has chosen, if this process uses it already: the GPU of its
// current context, or else the runtime's choice (cudaSetDevice) when that GPU has a primary
// context. None: this thread uses no GPU, and this call touched none.
std::optional<int> currentGpu();

// OK where this build and this machine can use GPUs; else why not.
Status available();

// The driver's number of the GPU allocation at `address`: never used twice in one process, so that
// memory which was freed and allocated anew can be told from the memory before. 0: there is none.
// Costs 40 ns.
uint64_t identityOf(const void* address);

// The GPU whose memory `address` is in. None: it is not a GPU's, or this process uses none.
std::optional<int> gpuOf(const void* address);

// All streams of a GPU share one hardware queue, in which a stream that waits holds up the others
// (CUDA_DEVICE_MAX_CONNECTIONS, as CUDA reads it).
inline bool hasOneHardwareQueue() {
  const char* const queues = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  return queues != nullptr && std::string_view(queues) == "1";
}

// "13.0 (driver 13.0)": runtime and driver versions, or why there is none. For people.
std::string versionText();

// Our hold on the primary context of one GPU, which is the one the CUDA runtime uses. While it is
// held the context exists; none is made on any other GPU.
class PrimaryContext {
 public:
  // kInvalidArgument for a GPU that is not there, naming how many are.
  static Result<PrimaryContext> retain(int gpu);
  // The same, for several owners that share it.
  static Result<std::shared_ptr<const PrimaryContext>> retainShared(int gpu) {
    PEERLANE_ASSIGN(PrimaryContext held, retain(gpu));
    return std::shared_ptr<const PrimaryContext>(std::make_shared<PrimaryContext>(std::move(held)));
  }
  PrimaryContext() = default;
  ~PrimaryContext();
  PrimaryContext(PrimaryContext&& other) noexcept { swap(other); }
  PrimaryContext& operator=(PrimaryContext&& other) noexcept {
    swap(other);
    return *this;
  }

  int gpu() const { return gpu_; }
  void* handle() const { return context_; }

 private:
  void swap(PrimaryContext& other) noexcept {
    std::swap(gpu_, other.gpu_);
    std::swap(context_, other.context_);
  }
  int gpu_ = -1;
  void* context_ = nullptr;  // CUcontext
};

// The GPUs that a context was made for, in the order in which the caller named them.
using Gpus = std::vector<std::shared_ptr<const PrimaryContext>>;

// Makes a context current on the calling thread, and at its end the previous one again: a caller's
// own choice of device is never disturbed. 40 ns.
class CurrentContext {
 public:
  explicit CurrentContext(const PrimaryContext& context);
  ~CurrentContext();
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  [[maybe_unused]] bool pushed_ = false;  // unused in a build without CUDA
};

}  // namespace peerlane::cuda
