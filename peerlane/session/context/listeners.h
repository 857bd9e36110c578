// SPDX-License-Identifier: Apache-2.0
//
// Listeners: the sockets on which a context can be reached. Always a Unix one; TCP where the user
// asks for it. Confined to the progress thread, but for addresses(), which is constant.
// Owner: the context's state.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "peerlane/core/config.h"
#include "peerlane/os/acceptor.h"
#include "peerlane/os/event_loop.h"
#include "peerlane/os/socket.h"
#include "peerlane/session/context/socket_files.h"
#include "peerlane/session/wire/ticket.h"

namespace peerlane {

class Listeners {
 public:
  // `wanted`: see ContextOptions::listen. `events`: of every listener. Errors name the address and
  // what is wrong with it.
  static Result<std::unique_ptr<Listeners>> create(EventLoop& loop, const Config& config,
                                                   const ContextId& id,
                                                   const std::vector<std::string>& wanted,
                                                   Acceptor::Events events);

  // As texts for a ticket, best first.
  const std::vector<std::string>& addresses() const { return addresses_; }

 private:
  struct Listener {
    std::unique_ptr<Acceptor> acceptor;
    SocketAddress address;
    SocketFile file;
  };
  Listeners(EventLoop& loop, Acceptor::Events events) : loop_(loop), events_(std::move(events)) {}
  // `bound`: what the socket is bound to, as it was asked for.
  Status add(Fd socket, const SocketAddress& bound);
  Status addUnix(const Config& config, const ContextId& id);
  Status addTcp(const Config& config, const std::string& wanted);
  Result<std::vector<SocketAddress>> chosen(const Config& config) const;

  EventLoop& loop_;
  const Acceptor::Events events_;
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::vector<std::string> addresses_;
};

}  // namespace peerlane
