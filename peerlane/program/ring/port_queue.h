// SPDX-License-Identifier: Apache-2.0
//
// PortQueue: carries out copies and stores in the order of the calls, for the proxy of a port
// channel: by a copy engine (stream/submit/stream_queue.h), by the CPU, or by the agent of a link
// (cpu/cpu_queue.h). The contract between the proxy, which serves a FIFO of requests, and the code
// that knows a device or a wire. Never blocks. External synchronization required: only the proxy's
// thread calls it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "peerlane/core/status.h"
#include "peerlane/memory/remote_memory.h"

namespace peerlane {

// A place that the queue reaches: by its address, or, if that is null, in a region of the peer.
struct PortAddress {
  std::byte* address = nullptr;
  const RemoteMemory* remote = nullptr;
  uint64_t offset = 0;  // in `remote`
};

class PortQueue {
 public:
  virtual ~PortQueue() = default;
  // False: the caller must not call copy() or store() before advance() has made room. One request
  // makes at most kMostPerRequest such calls.
  virtual bool hasRoom() = 0;
  static constexpr uint32_t kMostPerRequest = 3;
  // The memory must stay until isIdle(). Errors: kSystem (the device has failed), kPeerLost, ...
  virtual Status copy(const PortAddress& to, const PortAddress& from, uint64_t bytes) = 0;
  // Takes effect after all earlier calls: a thread that reads the word with acquire sees their
  // effects.
  virtual Status store(const PortAddress& word, uint64_t value) = 0;
  // Sets `passed` to true after all earlier copies and stores have stopped touching memory, however
  // many calls follow. Needs no room. After a failure it never sets it; the caller must then use
  // isIdle().
  using Mark = std::shared_ptr<std::atomic<bool>>;
  virtual void mark(Mark passed) = 0;
  // Continues the work under way. kPending: the caller must call it again soon, because no doorbell
  // announces the rest.
  enum class Advance : uint8_t { kIdle, kPending, kMoved };
  virtual Advance advance() = 0;
  // True when no copy or store touches memory any more.
  virtual bool isIdle() = 0;
  // The first failure; the queue carries out nothing after it.
  virtual Status health() = 0;
};

}  // namespace peerlane
