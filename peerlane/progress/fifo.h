// SPDX-License-Identifier: Apache-2.0
//
// Fifo: the host's end of a port's queue of requests (fifo_device.h): it places the ring and pops.
// Not a queue between CPU threads of one program: threads of a device push, or CPU threads that run
// the same code. Only one thread may pop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "peerlane/core/status.h"
#include "peerlane/progress/fifo_device.h"

namespace peerlane {

class Fifo {
 public:
  // A long request takes two slots; positions need a bit for the lap.
  static constexpr uint32_t kLeastSlots = 2;
  static constexpr uint32_t kMostSlots = 1u << 20;
  static constexpr size_t kDeviceBytes = 128;  // head and tailSeen, each on a line of its own

  // kInvalidArgument unless `slots` is a power of two between the two.
  static Status check(uint32_t slots);
  static size_t hostBytes(uint32_t slots) { return 64 + slots * sizeof(port::WordPair); }

  // Requires: check(slots); both pieces of memory zeroed, on 64 bytes, and as long as the Fifo.
  // `host` can be reached by the device at the address it has; `device` is its own.
  Fifo(uint32_t slots, std::byte* host, std::byte* device);

  const port::FifoHandle& handle() const { return handle_; }
  // Takes the next request, if one is there. `position()` is then the position after it.
  bool pop(port::PortRequest& request);
  // True when the next request is there, or half of it. Any thread.
  bool hasNext() const;
  // True when any request is there, or half of one, even if an earlier slot is not written yet. The
  // popping thread.
  bool hasAny() const;
  uint64_t position() const { return next_; }
  // Tells pushers that no thread pops any more: those that wait for room return. Such a pusher
  // leaves its slot unwritten, which would hold up all later requests, so this ends the whole FIFO.
  void close();

 private:
  port::FifoHandle handle_;
  uint64_t* tail_ = nullptr;  // the next word is `closed`
  uint64_t next_ = 0;
};

}  // namespace peerlane
