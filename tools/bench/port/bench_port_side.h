// SPDX-License-Identifier: Apache-2.0
//
// PortSide: one side of `peerlane bench port`, a process of its own where there are two GPUs: its
// GPU, context, service and the other side's memory; and the contest of a row, which both sides run
// alike. Confined to one thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "peerlane/channel/port/port_channel.h"
#include "peerlane/peerlane.h"
#include "tools/bench/gpu/bench_gpu_memory.h"
#include "tools/bench/gpu/bench_gpu_report.h"
#include "tools/bench/port/bench_port_kernels.h"
#include "tools/measure/bench_samples.h"

namespace peerlane::bench {

// One end of a socket pair between the two sides. The other one's end ends it.
class PortLine {
 public:
  explicit PortLine(int fd) : fd_(fd) {}
  ~PortLine();
  PortLine(const PortLine&) = delete;
  PortLine& operator=(const PortLine&) = delete;
  Status send(const void* data, size_t bytes) const;
  Status receive(void* data, size_t bytes) const;
  Status meet() const;
  Result<std::string> swap(const std::string& mine) const;

 private:
  const int fd_;
};

// How one contender plays a sample. `begin`, untimed, before both sides meet; `run`, timed.
struct PortGame {
  std::function<Status()> begin = [] { return Status::ok(); };
  std::function<Status()> run;
};

class PortSide {
 public:
  static constexpr uint64_t kMostBytes = uint64_t{128} << 20;
  static constexpr uint32_t kResidentBlocks = 8;

  static Result<std::unique_ptr<PortSide>> create(bool isParent, int gpu, bool isOneGpu,
                                                  PortLine& line);
  // After the other side has let go, too.
  ~PortSide();

  bool isParent() const { return isParent_; }
  bool isOneGpu() const { return isOneGpu_; }
  PortLine& line() { return line_; }
  Context& context() { return *context_; }
  ProxyService& service() { return *service_; }
  const GpuStream& stream() const { return *stream_; }
  const GpuStream& otherStream() const { return *otherStream_; }
  std::string route() const;

  // A channel from the source here to the destination there, by a semaphore of its own.
  Result<PortChannel> freshChannel();
  // The same to the words there.
  Result<PortChannel> packetChannel();
  // Where a copy leaves the GPU: to the destination there, or, on one GPU, whose copies to itself
  // are made by its multiprocessors, to memory of the host.
  Result<PortChannel> leavingChannel();
  std::byte* source() const { return source_.data(); }
  std::byte* destination() const { return destination_.data(); }
  std::byte* otherDestination() const { return otherDestination_; }
  // Words for raw patterns: all zero after freshWords(), at both sides.
  Status freshWords();
  uint64_t* words() const { return reinterpret_cast<uint64_t*>(words_.data()); }
  uint64_t* otherWords() const { return otherWords_; }
  // Calls that failed, and raw waits that gave up; of this GPU.
  uint64_t* wrong() const;
  uint64_t* counters() const;  // of the library's pattern; those of the raw one follow
  uint64_t* rawCounters() const;

  // Both contenders in turns, `samples` of each, the first few not kept; each sample is so many
  // iterations. If `bytes` is not 0, the source is fresh and the bytes that came are checked in
  // every sample.
  Result<Outcome> contest(const PortGame& ours, const PortGame& raw, uint64_t iterations,
                          uint64_t bytes, uint64_t samples = 15);
  // 20 launches of what is enqueued.
  Result<std::unique_ptr<GpuGraph>> graphOf(const std::function<Status()>& enqueue);
  static constexpr uint64_t kPerGraph = 20;

 private:
  explicit PortSide(bool isParent, bool isOneGpu, PortLine& line)
      : isParent_(isParent), isOneGpu_(isOneGpu), line_(line) {}
  Status open(int gpu);
  Status fill(uint64_t bytes, uint64_t seed);
  Result<uint64_t> countWrong(uint64_t bytes, uint64_t seed);

  const bool isParent_, isOneGpu_;
  PortLine& line_;
  std::unique_ptr<GpuStream> stream_, otherStream_;
  std::unique_ptr<GpuBuffer> notes_;
  std::unique_ptr<Context> context_;
  Peer peer_;
  Region source_, destination_, words_;
  RemoteRegion theirDestination_, theirWords_;
  std::unique_ptr<ProxyService> service_;
  PortConnection connection_;
  MemoryId sourceId_ = 0, theirDestinationId_ = 0, wordsId_ = 0, theirWordsId_ = 0;
  Region hostDestination_;  // on one GPU, as the next two
  RemoteRegion theirHostDestination_;
  MemoryId theirHostDestinationId_ = 0;
  std::byte* otherDestination_ = nullptr;
  uint64_t* otherWords_ = nullptr;
  uint32_t nextTag_ = 1;
  uint64_t seed_ = 1;
};

}  // namespace peerlane::bench
