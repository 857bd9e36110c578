// SPDX-License-Identifier: Apache-2.0
//
// GpuSide: one process of a GPU benchmark: its GPU, its context, the peer, a source and a
// destination region in GPU memory, and both regions of the other process, through the library and
// raw. Both processes have the same. Confined to one thread.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "peerlane/peerlane.h"
#include "tools/bench/gpu/bench_gpu_memory.h"
#include "tools/bench/gpu/bench_gpu_pattern.h"
#include "tools/bench/gpu/bench_gpu_request.h"
#include "tools/bench/sides/bench_memory.h"

namespace peerlane::bench {

class GpuSide {
 public:
  struct Other {
    RemoteRegion remote;
    std::unique_ptr<RawWindow> raw;
  };

  // Wakes CUDA up and loads the kernels of the benchmark; no context of the library yet.
  static Result<std::unique_ptr<GpuSide>> create(const GpuSetup& setup, const Descriptor& desk);
  ~GpuSide();
  Status makeContext();
  // Makes both regions and tells the other process; then learns of its own.
  Status exportRegions(GpuPipe& pipe);
  Status importRegions(GpuPipe& pipe, const Peer& peer);
  // Before the other process frees its memory.
  void letGoOfOther();

  const GpuSetup& setup() const { return setup_; }
  const GpuModel& model() const { return model_; }
  Context& context() { return *context_; }
  const Peer& peer() const { return peer_; }
  const Region& source() const { return source_; }
  const Region& destination() const { return destination_; }
  // A small region for the first bytes of new peers, which nobody imported before.
  const Region& doorstep() const { return doorstep_; }
  const RegionReference::Encoded& otherDoorstep() const { return otherDoorstep_; }
  const Other& otherSource() const { return otherSource_; }
  const Other& otherDestination() const { return otherDestination_; }
  const GpuStream& stream() const { return *stream_; }
  DeviceStream deviceStream() const { return DeviceStream::cuda(stream_->handle()); }
  Device device() const { return {DeviceKind::kCuda, setup_.gpu}; }
  GpuDesk& desk() { return *reinterpret_cast<GpuDesk*>(deskPages_->data()); }
  // The word of the desk that this side's GPU raises, and the one that its CPU looks at.
  uint64_t* flagOut();
  std::atomic<uint64_t>& flagIn();
  // For the words of a raw game: after the bytes that rows use, in the destination here and there.
  uint64_t* gameHere() {
    return reinterpret_cast<uint64_t*>(destination_.data() + setup_.regionBytes);
  }
  uint64_t* gameThere() {
    return reinterpret_cast<uint64_t*>(otherDestination_.raw->data() + setup_.regionBytes);
  }
  static constexpr uint64_t kGameBytes = 4096;
  static constexpr uint64_t kDoorstepBytes = 64 << 10;
  // A zero word for the raw kernels.
  uint64_t* counter() { return reinterpret_cast<uint64_t*>(words_->data()); }
  const Signal& signal() const { return *signal_; }

  Status fill(bool isSource, uint64_t bytes, uint64_t seed);
  Status poison(uint64_t bytes);
  Result<uint64_t> countWrong(uint64_t seed, std::span<const GpuSpan> spans);

 private:
  struct Exported;
  GpuSide() = default;
  Result<Region> makeRegion();

  GpuSetup setup_;
  GpuModel model_;
  std::unique_ptr<RawMapping> deskPages_;
  std::unique_ptr<PinnedPages> pinned_;
  std::unique_ptr<GpuStream> stream_;
  std::unique_ptr<GpuBuffer> words_;
  std::unique_ptr<GpuBuffer> spans_;  // for the verification
  // Before the context: regions must be gone before their bytes.
  std::vector<std::unique_ptr<GpuBuffer>> memory_;
  std::unique_ptr<Context> context_;
  Peer peer_;
  std::optional<Signal> signal_;
  Region source_;
  Region destination_;
  Region doorstep_;
  RegionReference::Encoded otherDoorstep_{};
  Other otherSource_;
  Other otherDestination_;
};

}  // namespace peerlane::bench
