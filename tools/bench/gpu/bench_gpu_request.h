// SPDX-License-Identifier: Apache-2.0
//
// The messages between the two processes of a GPU benchmark: requests of the parent, answers of the
// child, the page of words that both and their GPUs share, and the pipe with bounded waits. Both
// are the same program, so the structs are sent as they are. Plain values; the pipe is confined to
// one thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "peerlane/channel/communicator/communicator.h"
#include "peerlane/program/device/device_stream.h"
#include "tools/bench/gpu/bench_gpu_memory.h"
#include "tools/bench/sides/bench_request.h"
#include "tools/measure/bench_pipe.h"

namespace peerlane::bench {

enum GpuBenchKind : uint32_t {
  // Answers, besides those of BenchKind
  kGpuSeen = 200,  // double: the time at which the last word was there
  kGpuNumberIs,    // uint64_t
  kGpuCountsAre,   // GpuCounts
  kGpuFirstByteIs,
  // Requests
  kGpuSetup,         // GpuSetup, descriptor of the desk; kReady
  kGpuUsed,          // kGpuNumberIs: bytes used on its GPU
  kGpuMakeContext,   // kTicketIs
  kGpuMakeRegions,   // as kMakeRegions
  kGpuFill,          // FillRequest; kReady
  kGpuPoison,        // uint64_t bytes of the destination; kReady
  kGpuVerify,        // uint64_t seed, GpuSpan[]; kWrongIs
  kGpuWatch,         // WatchRequest; kGpuSeen
  kGpuPush,          // PushRequest; kGpuSeen
  kGpuCounts,        // kGpuCountsAre
  kGpuAccept,        // AcceptRequest; kGpuFirstByteIs
  kGpuMakeExtra,     // uint64_t: how many contexts; kReady
  kGpuConnectExtra,  // the parent's ticket; kReady
  kGpuDropExtra,     // kReady
  kGpuPingpong,      // GpuPingpong; kReady
  kGpuMessages,      // GpuPingpong; kReady twice
  kGpuLists,         // GpuList; kReady twice
  kGpuEnd,           // lets go of the parent's memory; kReady
};

struct GpuSetup {
  bool isParent = false;
  bool byCudaMalloc = false;
  std::array<char, 16> link{};  // no other between the two; empty: all
  int32_t gpu = 0;
  int32_t otherGpu = 0;
  uint64_t regionBytes = 0;
};

// A page of words in host memory that is pinned on both sides. The GPUs write the completions of
// the raw copies there; the other words start a sample. Each word is on cache lines of its own.
struct GpuDesk {
  static constexpr uint64_t kBytes = 64 << 10;
  alignas(256) std::atomic<uint64_t> toChild{0};   // by the parent's GPU; the child acquires
  alignas(256) std::atomic<uint64_t> toParent{0};  // by the child's GPU; the parent acquires
  // By the child, once it looks for the bytes that the request of this number announced. Release.
  alignas(256) std::atomic<uint64_t> armed{0};
  alignas(256) std::atomic<uint64_t> go{0};       // by the parent: begin, where both move bytes
  alignas(256) std::atomic<uint64_t> abandon{0};  // by the parent: nothing will come any more
};

// Until the word (raw) or Signal 0 (ours) is at least `value`.
struct WatchRequest {
  uint64_t number = 0;
  bool ours = false;
  uint64_t value = 0;
};
// The same, while the child puts as many bytes as the parent.
struct PushRequest {
  WatchRequest watch;
  uint64_t bytes = 0;
  uint64_t flag = 0;  // raised at the parent by the raw copy
};
struct AcceptRequest {
  uint64_t number = 0;
  uint64_t expected = 0;  // the first word at the child's doorstep
};
struct GpuFirstByte {
  double seenAt = 0;
  uint64_t wrong = 0;
};
struct GpuCounts {
  uint64_t signals = 0;
  uint64_t flags = 0;
};
struct GpuPingpong {
  bool ours = false;
  uint64_t bytes = 0;
  uint64_t rounds = 0;  // in one sample
  uint64_t warmup = 0;  // samples
  uint64_t samples = 0;
  uint64_t perGraph = 0;                // rounds in a graph; 0: launched one by one
  Protocol protocol = Protocol::kAuto;  // of messages
};

struct GpuList {
  bool asOne = false;  // one message, not one for each piece
  uint64_t pieces = 0;
  uint64_t pieceBytes = 0;
  uint64_t rounds = 0;  // in one sample
  uint64_t warmup = 0;  // samples
  uint64_t samples = 0;
};

// Looks until `reached` or the end of patience. kTimeout names `what`; kCancelled when `stop` said
// so (looked at now and then).
template <typename Reached, typename Stop>
Status spinUntil(Reached reached, Stop stop, const char* what) {
  const auto deadline = std::chrono::steady_clock::now() + kGpuPatience;
  for (uint32_t looks = 1; !reached(); ++looks) {
    if (looks % 256 != 0) continue;
    if (stop()) return Status(Code::kCancelled, std::string(what) + ": given up");
    if (std::chrono::steady_clock::now() > deadline)
      return Status(Code::kTimeout, std::string(what) + ": nothing within " +
                                        std::to_string(kGpuPatience.count()) + " s");
  }
  return Status::ok();
}

class GpuPipe {
 public:
  explicit GpuPipe(Descriptor end);
  // Its sends end, too, when nobody reads for kGpuPatience.
  BenchPipe& plain() { return pipe_; }
  template <typename T>
  Status send(uint32_t kind, const T& value) {
    return pipe_.send(kind, value);
  }
  Status send(uint32_t kind) { return pipe_.send(kind, {}); }
  // Something is there, or the other process ended.
  bool readable(int milliseconds = 0) const;
  // As receiveKind, but kTimeout after kGpuPatience times `factor`.
  Result<BenchMessage> receive(uint32_t kind, int factor = 1);

 private:
  int fd_;
  BenchPipe pipe_;
};

}  // namespace peerlane::bench
