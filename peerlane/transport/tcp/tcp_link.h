// SPDX-License-Identifier: Apache-2.0
//
// TcpLink: an agent link over one data socket. Until that socket is connected, serve() returns
// kAgain; if it never connects, the link ends with the reason. Threads as for Link.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "peerlane/transport/frame_agent.h"
#include "peerlane/transport/link.h"
#include "peerlane/transport/tcp/stream_keys.h"
#include "peerlane/transport/tcp/tcp_dialer.h"
#include "peerlane/transport/tcp/tcp_listener.h"
#include "peerlane/transport/tcp/tcp_pipe.h"
#include "peerlane/transport/transport.h"

namespace peerlane {

class TcpLink final : public Link {
 public:
  // `name` is for log lines. `keys`: the socket is encrypted with these; null: it is not.
  TcpLink(const LinkSurroundings& surroundings, std::string name, const StreamKeys* keys);

  // Exactly one of the two brings the socket.
  void dial(TcpDialer::Order order);
  // `socket`, if it is valid, arrived already; else `expectation` brings it to socketArrived().
  // `present` is the token from the dialler's offer.
  void await(Fd socket, std::unique_ptr<TcpListener::Expectation> expectation,
             const TcpToken& present);
  void socketArrived(Fd socket);
  static LinkAbilities abilities();

  const LinkTraits& traits() const override { return traits_; }
  Result<LinkPart> grant(const RegionRecord& region) override;
  Result<RemoteMemory> attach(Grant grant) override;
  void detach(RemoteMemory& memory) override;
  bool poll() override { return agent_.poll(); }
  Served serve(AgentWork& work) override { return agent_.serve(work); }
  void abandon(AgentWork& work, Code code) override { agent_.abandon(work, code); }
  Status health() const override;
  void close(Code code) override;

 private:
  void settle(Result<Fd> socket);
  void watch();

  const LinkTraits traits_;
  EventLoop& loop_;
  const std::chrono::nanoseconds patience_;
  const std::chrono::nanoseconds lookInterval_;
  const std::function<void()> workArrived_;
  TcpPipe* pipe_;  // agent_'s
  FrameAgent agent_;
  TcpToken present_{};
  std::unique_ptr<TcpListener::Expectation> expectation_;
  std::unique_ptr<TcpDialer> dialer_;
  Timer limit_;
  Timer look_;  // the next one at the data connection
};

}  // namespace peerlane
