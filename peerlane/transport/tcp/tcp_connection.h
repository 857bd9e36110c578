// SPDX-License-Identifier: Apache-2.0
//
// TcpConnection: one data connection of a tcp link: how its socket comes about, and the agent over
// it. Until the socket is connected, the agent takes no work. If that of the first one never
// connects, the agent ends with the reason; a later one is done without, unless PEERLANE_STRICT is
// set. Threads: agent() and health() are any thread's; the rest belongs to the loop's thread.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "peerlane/os/socket_address.h"
#include "peerlane/transport/frame_agent.h"
#include "peerlane/transport/tcp/stream_keys.h"
#include "peerlane/transport/tcp/tcp_dialer.h"
#include "peerlane/transport/tcp/tcp_listener.h"
#include "peerlane/transport/tcp/tcp_pipe.h"
#include "peerlane/transport/transport.h"

namespace peerlane {

class TcpConnection {
 public:
  // `name` is for log lines. `keys`: the socket is encrypted with these; null: it is not.
  // `isFirst`: of its link. `made` is called with the address of the other end, if the system still
  // knows it, when the socket is there.
  using Made = std::function<void(const Result<SocketAddress>&)>;
  TcpConnection(const LinkSurroundings& surroundings, std::string name, const StreamKeys* keys,
                bool isFirst, Made made);

  // Exactly one of the two brings the socket.
  void dial(TcpDialer::Order order);
  // `socket`, if it is valid, arrived already; else `expectation` brings it to socketArrived().
  // `present` is from the dialler's offer.
  void await(Fd socket, std::unique_ptr<TcpListener::Expectation> expectation,
             const TcpCard& present);
  void socketArrived(Fd socket);

  FrameAgent& agent() { return agent_; }
  // As Link::health().
  Status health() const;
  // Makes no socket any more. The agent is closed by its owner, before or after.
  void stop();

 private:
  void settle(Result<Fd> socket);
  void watch();

  EventLoop& loop_;
  const std::chrono::nanoseconds patience_;
  const std::chrono::nanoseconds lookInterval_;
  const std::function<void()> workArrived_;
  const Made made_;
  const std::string name_;
  const bool isRequired_;
  TcpPipe* pipe_;  // agent_'s
  FrameAgent agent_;
  TcpCard present_{};
  std::unique_ptr<TcpListener::Expectation> expectation_;
  std::unique_ptr<TcpDialer> dialer_;
  Timer limit_;
  Timer look_;  // the next one at the data connection
};

}  // namespace peerlane
