// SPDX-License-Identifier: Apache-2.0
//
// Fifo: the host's end of a port's queue (fifo_device.h): where its ring lies, and the thread that
// pops. Not a queue between CPU threads of one program: pushers are threads of a device, or CPU
// threads that run the same code. One thread pops.
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
  // The next request, if one is there. `position()` is then the position behind it.
  bool pop(port::PortRequest& request);
  // The next request is there, or half of it. Any thread.
  bool hasNext() const;
  // A request is there, or half of one: maybe behind a place whose pusher has not written it yet.
  bool hasAny() const;
  uint64_t position() const { return next_; }
  // Nobody pops any more: pushers without room go on. A slot that one of them leaves would hold up
  // all others, so this is the end of the whole FIFO.
  void close();

 private:
  port::FifoHandle handle_;
  uint64_t* tail_ = nullptr;  // `closed` is behind it
  uint64_t next_ = 0;
};

}  // namespace peerlane
