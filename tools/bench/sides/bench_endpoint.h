// SPDX-License-Identifier: Apache-2.0
//
// BenchEndpoint: one process of a benchmark: its context, the peer, a source and a destination
// region, and both regions of the other process, through the library and raw. Both processes have
// the same. Confined to one thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "peerlane/peerlane.h"
#include "tools/bench/sides/bench_memory.h"
#include "tools/measure/bench_pipe.h"

namespace peerlane::bench {

// How the two processes are set up. Sent to the child as it is.
struct EndpointSetup {
  bool isPrivate = false;
  char link[8] = {};    // "" = auto
  char engine[8] = {};  // "" = auto
  int cpu = -1;         // of the calling thread; -1: anywhere
  uint64_t regionBytes = 0;
  uint32_t copyThreads = 0;
};

// Words of the raw limits, shared by both processes, each on cache lines of its own.
struct RawFlags {
  alignas(256) std::atomic<uint64_t> toChild{0};   // release; the child's raw loops acquire
  alignas(256) std::atomic<uint64_t> toParent{0};  // release; the parent's raw loops acquire
};

// A region of the other process.
struct OtherRegion {
  RemoteRegion remote;
  std::unique_ptr<RawMapping> mapping;  // of the same pages; mapped memory only
  std::byte* address = nullptr;         // in the other process
};

class BenchEndpoint {
 public:
  static Result<std::unique_ptr<BenchEndpoint>> create(const EndpointSetup& setup);

  Context& context() { return *context_; }
  const EndpointSetup& setup() const { return setup_; }

  // Makes both regions and tells the other process; then learns of its own.
  Status exportRegions(BenchPipe& pipe);
  Status importRegions(BenchPipe& pipe, const Peer& peer);
  Status adoptFlags(const Descriptor& file);

  const Peer& peer() const { return peer_; }
  const Region& source() const { return source_; }
  const Region& destination() const { return destination_; }
  const OtherRegion& otherSource() const { return otherSource_; }
  const OtherRegion& otherDestination() const { return otherDestination_; }
  RawFlags& flags() { return *reinterpret_cast<RawFlags*>(flags_->data()); }

  // How many additions the peer was told of through Notify::signal.
  uint64_t signalsSent = 0;

 private:
  struct Exported;
  BenchEndpoint() = default;
  Result<Region> makeRegion();
  Status importOne(const Peer& peer, const Exported& exported, int which, int file,
                   OtherRegion& other);

  EndpointSetup setup_;
  // Before the context: regions of private memory must be gone before their bytes.
  std::vector<std::unique_ptr<PrivateMemory>> privateMemory_;
  std::unique_ptr<RawMapping> flags_;
  std::unique_ptr<Context> context_;
  Peer peer_;
  Region source_;
  Region destination_;
  OtherRegion otherSource_;
  OtherRegion otherDestination_;
};

// Two cores for the two processes, `wanted` if it names them. -1 where this machine has only one.
Result<std::vector<int>> chooseCpus(const std::vector<int>& wanted);
void pinThisThread(int cpu);

}  // namespace peerlane::bench
