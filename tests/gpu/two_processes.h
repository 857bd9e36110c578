// SPDX-License-Identifier: Apache-2.0
//
// Tests with GPUs run in processes of their own: CUDA does not survive a fork, so the test program
// itself never touches it. Each side is a function; they talk through a Line. A side fails its test
// by a failed expectation (printed there) or by dying; sides that hang are killed.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "peerlane/os/cuda.h"
#include "peerlane/os/fd.h"
#include "peerlane/peerlane.h"
#include "tests/gpu/memories.h"

namespace peerlane::gputest {

// One end of a socket pair. Any failure ends the process: the other side is gone.
class Line {
 public:
  explicit Line(int fd) : fd_(fd) {}
  void send(const std::string& text) const;
  std::string receive() const;
  // Both sides are here.
  void meet() const;

 private:
  int fd_;
};

// GPUs in software copy as fast as one core does: tests that are about time or size move less.
bool inSoftware();
// How many GPUs there are, asked in a child.
int gpuCount();

using SideFunction = std::function<void(const Line& line)>;
// Runs both in fresh processes, `seconds` at most (in software four times). False when one failed.
bool runTwo(const SideFunction& first, const SideFunction& second, int seconds = 60);
bool runOne(const SideFunction& only, int seconds = 60);

// A process that a side kills. Whatever becomes of the side, it does not outlive the test program.
struct Victim {
  pid_t pid = 0;
  Fd socket;
  Line line() const { return Line(socket.get()); }
  // By SIGKILL; it may still be a zombie afterwards.
  void kill() const;
};

// Where a side gets victims from, as many as it likes: the test program makes them, because it has
// not touched CUDA.
class Victims {
 public:
  explicit Victims(int fd) : fd_(fd) {}
  Victim next() const;

 private:
  int fd_;
};

// The victims run `victim`, and must be killed before they return.
bool runWithVictims(const std::function<void(const Victims& victims)>& survivor,
                    const SideFunction& victim, int seconds = 60);

#define PEERLANE_NEEDS_GPUS(count)                  \
  if (::peerlane::gputest::gpuCount() < (count)) {  \
    GTEST_SKIP() << "needs " << (count) << " GPUs"; \
  }                                                 \
  static_assert(true)

// For what has streams that wait for each other's peers at the same time (docs/gotchas.md).
#define PEERLANE_NEEDS_TWO_QUEUES()                                                             \
  if (cuda::hasOneHardwareQueue()) {                                                            \
    GTEST_SKIP() << "needs two hardware queues: with one, a stream that waits holds up others"; \
  }                                                                                             \
  static_assert(true)

// Why memory does not travel by fabric handle here, asked in a child; empty: it does.
std::string whyNoFabric();
#define PEERLANE_NEEDS_FABRIC()                                                   \
  PEERLANE_NEEDS_GPUS(1);                                                         \
  if (const std::string why = ::peerlane::gputest::whyNoFabric(); !why.empty()) { \
    GTEST_SKIP() << "needs fabric handles: " << why;                              \
  }                                                                               \
  static_assert(true)

// --- Inside a side ---

// The second of two sides uses the second GPU where there is one.
Device gpu(int side);
// A context for that GPU; ends the process when it cannot be made.
std::unique_ptr<Context> makeContext(std::vector<Device> devices);

// The two sides as peers, over the line.
Peer meetPeer(Context& context, const Line& line, bool connects);
RemoteRegion exchange(const Peer& peer, const Region& region, const Line& line);

// Another process stands still, every thread of it, until it is let go on.
void freeze(pid_t pid);
void thaw(pid_t pid);

// Something of this process has made a context on that GPU.
bool hasContext(int gpu);
cudaStream_t makeStream();  // does not wait for the default stream
void mustSync(cudaStream_t stream);

// One side's surroundings: its GPU, a context that was made for it, and the other side as its peer.
// Side 1 connects to side 0.
struct Meeting {
  Meeting(int index, const Line& line);
  // Whoever orders work on `which` (the side's own stream where it is null).
  DeviceStream deviceStream(cudaStream_t which = nullptr) const {
    return DeviceStream::cuda(which == nullptr ? stream : which);
  }

  const int index;
  const Device device;
  const std::unique_ptr<Context> context;
  const Peer peer;
  const cudaStream_t stream;
};

// With a region at each side, of which the other one knows.
struct Side : Meeting {
  Side(int index, const Line& line, size_t bytes, Memory memory = Memory::kVmm);
  // The same place at both sides.
  Block block(size_t offset, size_t bytes) const {
    return {&region, offset, &remote, offset, bytes};
  }

  const Region region;
  const RemoteRegion remote;
};

// peerlane_poisonings_total of a context.
uint64_t poisonings(const Context& context);

// Whether a thread that counts what it has posted stops short of `last`. A thread that has posted
// nothing gets more looks, because it may not have begun; in the end it counts as stopped, because
// other threads may have filled its queue.
bool stopsShort(const std::atomic<size_t>& made, size_t last);

// Memory of a device, or any other, as the host sees it.
void fill(void* device, size_t bytes, uint32_t seed);
void clear(void* device, size_t bytes, int value);
// The number of 4-byte words in [device, +bytes) that are not those of fill(seed), which began
// `skip` bytes before.
uint64_t wrongWords(const void* device, size_t bytes, uint32_t seed, size_t skip = 0);

// For code that cannot go on: prints and ends the process.
[[noreturn]] void die(const char* what, const Status& status);
template <typename T>
T must(Result<T> result, const char* what) {
  if (!result.isOk()) die(what, result.status());
  return std::move(*result);
}
inline void must(const Status& status, const char* what) {
  if (!status.isOk()) die(what, status);
}
// The same for CUDA.
void mustCuda(int error, const char* what);

inline constexpr std::chrono::seconds kPatience{20};

// How soon a side hears of its peer's end at the latest. With GPUs in software both sides, and what
// else a machine does, share few cores.
std::chrono::seconds noticedWithin(std::chrono::seconds onHardware);

// How a post ended; also if it was refused, because its peer or its lane had ended before.
inline Status endOf(const Result<Transfer>& posted) {
  return posted.isOk() ? posted->wait(kPatience) : posted.status();
}

}  // namespace peerlane::gputest
