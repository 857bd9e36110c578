// SPDX-License-Identifier: Apache-2.0
//
// The blocks that a put, get or plan moves, the options of a post, and the notification for the
// peer. Plain values: a call reads the handles in them before it returns.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "peerlane/memory/region.h"
#include "peerlane/program/device/device_stream.h"
#include "peerlane/session/peer/peer.h"

namespace peerlane {

class HostStream;

// One contiguous piece of a put or get. The handles are read during the call only.
struct Block {
  const Region* local = nullptr;
  uint64_t localOffset = 0;
  const RemoteRegion* remote = nullptr;
  uint64_t remoteOffset = 0;
  uint64_t bytes = 0;
};

// `count` blocks of `blockBytes` at fixed distances on both sides.
struct StridedBlocks {
  const Region* local = nullptr;
  uint64_t localOffset = 0;
  uint64_t localStride = 0;
  const RemoteRegion* remote = nullptr;
  uint64_t remoteOffset = 0;
  uint64_t remoteStride = 0;
  uint64_t blockBytes = 0;
  uint64_t count = 0;
};

// The notification of a put: the peer gets it once all bytes of the put are visible there. Both
// parts may be given.
struct Notify {
  // Up to 4096 bytes, delivered to the peer's notification queue with `tag`; may be empty. Of those
  // that the peer's program does not take limits::kNotificationSlots (16) fit there; later
  // posts wait, and with limits::kNotificationsWaiting (1024) of them the next is refused:
  // kTryAgain.
  std::optional<std::span<const std::byte>> message{};
  uint32_t tag = 0;
  // Adds `signalAdd` to the peer's signal number `signal` (0 to 63).
  std::optional<uint32_t> signal{};
  uint64_t signalAdd = 1;
};

struct PostOptions {
  Notify notify{};  // puts only
  HostStream* stream =
      nullptr;  // ordered after everything posted to it before; null: on the calling thread
  // GPU memory: ordered after everything enqueued on this stream before, and before everything
  // enqueued on it afterwards. None: a stream of the library's own, ordered with nothing. Nothing
  // is enqueued on it after the call returned, and the call does not wait for it. A message
  // (Notify::message) is delivered by the host once the bytes are there; a signal is added by the
  // stream itself.
  //
  // A stream that is being captured into a CUDA graph makes the post a part of the graph: every
  // replay moves the bytes anew, adds to the signal and has a message delivered. Remote regions
  // must be imported before (kNotPrepared). The transfer then stands for all replays: it runs until
  // the graph and its executables are destroyed (OK), the peer is lost or cancel() is called, from
  // when on replays leave it out; wait() is kNotSupported. Until the graph is destroyed its regions
  // count as in use. A signal has words for 7 streams and captures.
  DeviceStream deviceStream{};
  Engine engine = Engine::kAuto;  // GPU memory: the engine that copies
  uint32_t ctas = 0;  // for Engine::kSm: how many thread blocks; 0: as many as are useful
};

// Blocks that are named by number with every post: block i lies at offset + i * stride.
struct IndexedBlocks {
  const Region* local = nullptr;
  uint64_t localOffset = 0;
  uint64_t localStride = 0;  // 0: blocks touch
  uint64_t localCount = 0;   // blocks in the region: numbers below this are accepted
  const RemoteRegion* remote = nullptr;
  uint64_t remoteOffset = 0;
  uint64_t remoteStride = 0;  // 0: blocks touch
  uint64_t remoteCount = 0;
  uint64_t blockBytes = 0;
  uint64_t maxBlocksPerPost = 0;
};

enum class Direction : uint8_t { kPut, kGet };

struct PlanOptions {
  // Added to the peer's signal once the bytes of a post are visible (puts only).
  std::optional<uint32_t> signal{};
  uint64_t signalAdd = 1;
  // How long create() may wait for regions that are not imported yet.
  std::chrono::nanoseconds timeout = std::chrono::seconds(10);
  Engine engine = Engine::kAuto;  // GPU memory: the engine that copies
  uint32_t ctas = 0;              // as PostOptions::ctas
};

// Block numbers that lie in memory of the GPU, and are read when the stream gets there. Numbers
// that are out of range are left out, and the transfer ends with kInvalidArgument.
struct DeviceIndexList {
  const uint32_t* local = nullptr;
  const uint32_t* remote = nullptr;
  uint64_t count = 0;
};

}  // namespace peerlane
