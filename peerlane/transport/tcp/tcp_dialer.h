// SPDX-License-Identifier: Apache-2.0
//
// TcpDialer: makes one data connection from the side that dials: tries the addresses in turn,
// presents the listener's token and verifies the one that comes back. Confined to the loop's
// thread.
#pragma once

#include <chrono>
#include <functional>
#include <vector>

#include "peerlane/os/event_loop.h"
#include "peerlane/os/fd.h"
#include "peerlane/os/socket_address.h"
#include "peerlane/transport/tcp/tcp_offer.h"

namespace peerlane {

class TcpDialer {
 public:
  // The connected socket, or why there is none.
  using Done = std::function<void(Result<Fd>)>;

  struct Order {
    std::vector<SocketAddress> addresses;  // in order of preference, at least one
    TcpCard present;                       // by the listener's offer
    TcpCard expect;                        // by our own offer
    std::chrono::nanoseconds patience;     // for everything together, in equal parts
  };

  // Calls `done` once, from the loop, unless it is destroyed before. `loop` outlives the dialer.
  TcpDialer(EventLoop& loop, Order order, Done done);

 private:
  void dialNext();
  void onReady();
  void onConnected();
  void onGreeting();
  void attemptFailed(const Status& why);
  void finish(Result<Fd> result);

  EventLoop& loop_;
  const Order order_;
  Done done_;
  size_t next_ = 0;
  Fd socket_;
  bool connected_ = false;
  TcpGreeting greeting_{};
  size_t received_ = 0;
  Status lastFailure_;
  Watch watch_;
  Timer start_;
  Timer limit_;  // of the address that is tried
};

}  // namespace peerlane
