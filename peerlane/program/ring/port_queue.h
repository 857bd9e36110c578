// SPDX-License-Identifier: Apache-2.0
//
// PortQueue: copies and stores that take effect in the order in which they were asked for, for the
// proxy of a port: by a copy engine (stream/stream_queue.h), by the CPU, or by the agent of a link
// (cpu/cpu_queue.h). The contract between who serves a FIFO and who knows a device or a wire. Never
// waits. External synchronization required: the proxy's thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "peerlane/core/status.h"
#include "peerlane/memory/remote_memory.h"

namespace peerlane {

// A place that the queue reaches: by address, or, without one, in a region of the peer.
struct PortAddress {
  std::byte* address = nullptr;
  const RemoteMemory* remote = nullptr;
  uint64_t offset = 0;  // in `remote`
};

class PortQueue {
 public:
  virtual ~PortQueue() = default;
  // False: nothing may be asked for before advance() made room. A request takes kMostPerRequest.
  virtual bool hasRoom() = 0;
  static constexpr uint32_t kMostPerRequest = 3;
  // Memory stays until isIdle(). Errors: kSystem (the device has failed), kPeerLost, ...
  virtual Status copy(const PortAddress& to, const PortAddress& from, uint64_t bytes) = 0;
  // Once all that was asked for before has taken effect, for whoever reads the word with acquire.
  virtual Status store(const PortAddress& word, uint64_t value) = 0;
  // Has `passed` raised once all that was asked for before touches memory no more, however much is
  // asked for behind it. Needs no room. Not after a failure: then isIdle() will tell.
  using Mark = std::shared_ptr<std::atomic<bool>>;
  virtual void mark(Mark passed) = 0;
  // Goes on with what is under way. kPending: it needs more calls, and nobody rings for them.
  enum class Advance : uint8_t { kIdle, kPending, kMoved };
  virtual Advance advance() = 0;
  // Nothing of it touches memory any more.
  virtual bool isIdle() = 0;
  // The first failure; nothing is carried out after it.
  virtual Status health() = 0;
};

}  // namespace peerlane
