// SPDX-License-Identifier: Apache-2.0
//
// PortEnd: one of the two sides of a test of port channels: its GPU, context, service and stream,
// memory that it sends from and memory that it receives into, both of the other side, and what
// launches bodies (port_kernels.h) on all that. Sides are processes, or threads of one process:
// kernels of two processes do not run at once on one GPU. Confined to the side's thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "peerlane/channel/port/port_channel.h"
#include "tests/gpu/port_kernels.h"
#include "tests/gpu/two_processes.h"

namespace peerlane::gputest {

enum class Sides { kOneProcess, kTwoProcesses };
std::string nameOf(Sides sides);
// What a test of `sides` needs here; empty: it can run.
std::string whyNot(Sides sides);
#define PEERLANE_NEEDS(sides)                                                     \
  if (const std::string why = ::peerlane::gputest::whyNot(sides); !why.empty()) { \
    GTEST_SKIP() << why;                                                          \
  }                                                                               \
  static_assert(true)

// Runs `side` twice, as side 0 and as side 1.
bool runSides(Sides sides, const std::function<void(int index, const Line& line)>& side,
              int seconds = 100);

struct PortEndOptions {
  size_t bytes = size_t{1} << 20;
  Memory out = Memory::kVmm;  // what is sent lies here
  Memory in = Memory::kVmm;
  std::vector<std::string> links{};  // empty: all
  size_t semaphores = 2;
  bool oneGpu = false;  // also where there are two
  ProxyServiceOptions service{};
  bool starts = true;
};

class PortEnd {
 public:
  PortEnd(int index, const Line& line, const PortEndOptions& options = {});
  // Both sides, after all kernels: nobody lets go of what the other one may still use.
  ~PortEnd();
  PortEnd(const PortEnd&) = delete;
  PortEnd& operator=(const PortEnd&) = delete;

  // From `out` to the peer's `in`, by semaphore `number`.
  PortChannel put(size_t number = 0) const;
  // From the peer's `out` to `in`.
  PortChannel get(size_t number = 0) const;
  // `channel` by semaphore `number`, `second` by the next one where there is one. Each number has
  // notes of its own.
  PortJob job(uint64_t bytes, uint64_t rounds, PortEngine engine = PortEngine::kAuto,
              size_t number = 0) const;

  void launch(PortBody body, PortForm form, const PortJob& job, uint32_t blocks = 1,
              cudaStream_t on = nullptr) const;
  // Until the kernels of the stream have ended.
  void join(cudaStream_t on = nullptr) const;
  // False: they have not within that time.
  bool joinWithin(std::chrono::milliseconds time, cudaStream_t on = nullptr) const;
  // Launches, joins and expects that all was right.
  void run(PortBody body, PortForm form, const PortJob& job, uint32_t blocks = 1) const;
  PortNotes notes(size_t number = 0) const;
  PortNotes* notesAt(size_t number) const { return notes_ + number; }
  void clearNotes() const;
  void expectGood(size_t number = 0) const;
  // The other side is gone: nobody is met at the end.
  void abandon() { isAlone_ = true; }

  static constexpr size_t kMostNotes = 8;

  const int index;
  const Line& line;
  const Device device;
  const std::unique_ptr<Context> context;
  const Peer peer;
  const cudaStream_t stream;
  const Region out, in;
  const RemoteRegion theirOut, theirIn;
  const std::unique_ptr<ProxyService> service;
  const PortConnection connection;
  MemoryId outId, inId, theirOutId, theirInId;
  std::vector<PortSemaphore> semaphores;

 private:
  PortNotes* notes_ = nullptr;
  bool isAlone_ = false;
};

}  // namespace peerlane::gputest
