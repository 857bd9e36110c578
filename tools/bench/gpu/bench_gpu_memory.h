// SPDX-License-Identifier: Apache-2.0
//
// The GPU of one process of a benchmark, seen past the library: its streams, its memory, and the
// other process's memory mapped a second time, with which the raw limit is measured over the very
// same bytes. Every wait is bounded. Free of CUDA's headers; built only where there is CUDA. All
// calls are for the calling thread's current device. External synchronization required.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "peerlane/core/status.h"
#include "tools/measure/bench_pipe.h"

namespace peerlane::bench {

// How long anything may take before the benchmark gives up.
inline constexpr std::chrono::seconds kGpuPatience{20};

// The clock that both processes share, in microseconds.
double gpuBenchNow();

// kNotSupported where there is no driver or no GPU.
Result<int> countGpus();
struct GpuModel {
  std::string name;
  int multiprocessors = 0;
};
// Makes the GPU current and its primary context. kSystem.
Result<GpuModel> useGpu(int gpu);
// Makes nothing. "?" where there is no such GPU.
std::string nameOfGpu(int gpu);
// Of the whole device, by all processes.
Result<uint64_t> usedGpuBytes();
// "13.0, driver 13.0".
std::string gpuVersions();

class GpuStream {
 public:
  static Result<std::unique_ptr<GpuStream>> create();
  ~GpuStream();
  GpuStream(const GpuStream&) = delete;
  GpuStream& operator=(const GpuStream&) = delete;
  void* handle() const { return handle_; }
  // Until all work is done. kTimeout after kGpuPatience.
  Status wait() const;

 private:
  explicit GpuStream(void* handle) : handle_(handle) {}
  void* handle_;
};

// Work that is enqueued on a stream while it is captured, to be launched there again and again.
class GpuGraph {
 public:
  static Result<std::unique_ptr<GpuGraph>> capture(const GpuStream& stream,
                                                   const std::function<Status()>& enqueue);
  ~GpuGraph();
  GpuGraph(const GpuGraph&) = delete;
  GpuGraph& operator=(const GpuGraph&) = delete;
  Status launch(const GpuStream& stream) const;

 private:
  explicit GpuGraph(void* executable) : executable_(executable) {}
  void* executable_;
};

// By cudaMalloc, zeroed.
class GpuBuffer {
 public:
  static Result<std::unique_ptr<GpuBuffer>> create(uint64_t bytes);
  ~GpuBuffer();
  GpuBuffer(const GpuBuffer&) = delete;
  GpuBuffer& operator=(const GpuBuffer&) = delete;
  std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

 private:
  GpuBuffer(std::byte* data, uint64_t bytes) : data_(data), bytes_(bytes) {}
  std::byte* data_;
  uint64_t bytes_;
};

// Done when they return.
Status copyToGpu(const GpuStream& stream, void* to, const void* from, uint64_t bytes);
Status copyFromGpu(const GpuStream& stream, void* to, const void* from, uint64_t bytes);
Status setGpuBytes(const GpuStream& stream, void* data, uint8_t value, uint64_t bytes);

// The handle by which another process can map an allocation: a legacy IPC handle, or a descriptor
// for VMM memory.
struct RawShare {
  bool byDescriptor = false;
  uint64_t bytes = 0;   // of the whole allocation
  uint64_t offset = 0;  // of the address in it
  std::array<char, 64> handle{};
};
// `file` is set where a descriptor is needed.
Result<RawShare> shareGpuMemory(const void* data, Descriptor& file);

// Memory of the other process. The other one frees it only after this went.
class RawWindow {
 public:
  // Takes nothing: `file` stays the caller's. `gpu`: the current device.
  static Result<std::unique_ptr<RawWindow>> open(const RawShare& share, int file, int gpu);
  ~RawWindow();
  RawWindow(const RawWindow&) = delete;
  RawWindow& operator=(const RawWindow&) = delete;
  std::byte* data() const { return base_ + offset_; }

 private:
  RawWindow(std::byte* base, const RawShare& share)
      : base_(base), bytes_(share.bytes), offset_(share.offset), isMapped_(share.byDescriptor) {}
  std::byte* base_;
  uint64_t bytes_;
  uint64_t offset_;
  bool isMapped_;
};

// Host memory that the GPU may write. Whole pages. Ends before the memory does.
class PinnedPages {
 public:
  static Result<std::unique_ptr<PinnedPages>> create(void* data, uint64_t bytes);
  ~PinnedPages();
  PinnedPages(const PinnedPages&) = delete;
  PinnedPages& operator=(const PinnedPages&) = delete;
  // The GPU's address of a place in it.
  void* onGpu(const void* place) const {
    return onGpu_ + (static_cast<const std::byte*>(place) - data_);
  }

 private:
  PinnedPages(std::byte* data, std::byte* onGpu) : data_(data), onGpu_(onGpu) {}
  std::byte* data_;
  std::byte* onGpu_;
};

}  // namespace peerlane::bench
