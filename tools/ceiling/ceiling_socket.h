// SPDX-License-Identifier: Apache-2.0
//
// The raw limit of a socket: one connection over the loopback interface, blocking calls, bytes
// straight out of the source and into the destination, one word of confirmation per put. External
// synchronization required.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "peerlane/core/status.h"
#include "tools/measure/bench_pipe.h"

namespace peerlane::bench {

// The transfers that one side asks of the other.
struct SocketRequest {
  bool isPut = false;
  bool bothWays = false;  // as many bytes come back
  uint64_t bytes = 0;     // per transfer
  uint64_t stride = 0;    // between their places in the region
  uint64_t count = 0;
};

class RawSocket {
 public:
  struct Listener {
    Descriptor socket;
    uint16_t port = 0;
  };
  static Result<Listener> listen();
  static Result<std::unique_ptr<RawSocket>> accept(const Listener& listener);
  static Result<std::unique_ptr<RawSocket>> connect(uint16_t port);

  // One word each way: both sides are there.
  Status greet(bool first);
  Status put(const std::byte* from, uint64_t bytes);
  Status get(std::byte* to, uint64_t bytes);
  // A put that is answered by as many bytes.
  Status exchange(const std::byte* from, std::byte* to, uint64_t bytes);
  // The other side of `request.count` puts or gets.
  Status serve(const SocketRequest& request, const std::byte* source, std::byte* destination);

 private:
  explicit RawSocket(Descriptor socket) : socket_(std::move(socket)) {}
  Status sendAll(const void* from, uint64_t bytes);
  Status receiveAll(void* to, uint64_t bytes);
  Descriptor socket_;
};

}  // namespace peerlane::bench
