// SPDX-License-Identifier: Apache-2.0
//
// Connector: the calls of Context::connect(): which addresses lead to another context, in which
// order a Dialer tries them, and the detour to the Unix socket of a context of this host that was
// named by an IP address.
//
// Threads: any; the progress thread gets kInvalidArgument. Attempts begin on the progress thread.
// No lock: nothing here changes.
// Owner: the context's state, which a call that dials keeps alive.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "peerlane/core/config.h"
#include "peerlane/session/context/dialer.h"
#include "peerlane/session/peer/peer.h"
#include "peerlane/session/wire/handshake.h"
#include "peerlane/session/wire/ticket.h"

namespace peerlane {

class PeerTable;

class Connector {
 public:
  using Clock = std::chrono::steady_clock;

  // `self`: the context's own side of a handshake. `owner`: the context's state.
  Connector(const Config& config, Progress& progress, PeerTable& peers, HandshakeOptions self,
            std::weak_ptr<void> owner)
      : config_(config),
        progress_(progress),
        peers_(peers),
        self_(std::move(self)),
        owner_(std::move(owner)) {}

  // The two calls of Context::connect().
  Result<Peer> connect(const Ticket& ticket, Clock::time_point deadline) const;
  Result<Peer> connectByAddress(const std::string& address, const Secret& secret,
                                Clock::time_point deadline) const;

 private:
  // `near`: set, and an error returned, when an IP address leads to a context of this host.
  Result<Peer> reach(const Ticket& ticket, const std::optional<ContextId>& expected,
                     Clock::time_point deadline, std::optional<ContextId>* near = nullptr) const;
  std::shared_ptr<PeerCore> begin(Fd socket, HandshakeOptions options, DialManner manner,
                                  const Dialer::Done& done) const;

  const Config& config_;
  Progress& progress_;
  PeerTable& peers_;
  const HandshakeOptions self_;
  const std::weak_ptr<void> owner_;
};

}  // namespace peerlane
