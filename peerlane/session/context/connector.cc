// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/context/connector.h"

#include <utility>

#include "peerlane/os/network_interfaces.h"
#include "peerlane/session/context/peer_table.h"
#include "peerlane/transport/unix_reach.h"

namespace peerlane {

Result<Peer> Connector::connect(const Ticket& ticket, Clock::time_point deadline) const {
  return reach(ticket, ticket.context, deadline);
}

// An address that leads to a context of this very host: its Unix socket carries descriptors and
// proves the process, so the better links become possible. It is tried before anything is set up,
// so that the other side sees one peer; where it cannot be reached, the address is good enough.
Result<Peer> Connector::connectByAddress(const std::string& address, const Secret& secret,
                                         Clock::time_point deadline) const {
  const AddressOnInterface named = splitInterface(address);
  if (!named.interface.empty()) {
    PEERLANE_ASSIGN(const auto interfaces, listInterfaces());
    if (const Status known = checkInterface(interfaces, named.interface, nullptr); !known.isOk())
      return known.withContext("connect to " + address);
  }
  Ticket ticket;
  ticket.secret = secret;
  ticket.addresses = {named.address};
  std::optional<ContextId> near;
  auto peer = reach(ticket, std::nullopt, deadline, &near);
  if (peer.isOk() || !near) return peer;
  Ticket nearer = ticket;
  nearer.hostIdentity = localHostIdentity();
  nearer.addresses = {"unix:@peerlane-" + near->toText()};
  if (!config_.socketDirectory.empty())
    nearer.addresses.insert(nearer.addresses.begin(), "unix:" + config_.socketDirectory +
                                                          "/peerlane-" + near->toText() + ".sock");
  peer = reach(nearer, near, deadline);
  return peer.isOk() ? peer : reach(ticket, near, deadline);
}

Result<Peer> Connector::reach(const Ticket& ticket, const std::optional<ContextId>& expected,
                              Clock::time_point deadline, std::optional<ContextId>* near) const {
  if (progress_.onLoopThread())
    return Status(Code::kInvalidArgument,
                  "connect was called from a callback on the progress thread");
  if (ticket.addresses.empty())
    return Status(Code::kInvalidArgument, "the ticket carries no address");
  HandshakeOptions options = self_;
  options.secret = ticket.secret;
  options.expectedPeer = expected;
  const HostRelation relation = hostRelation(ticket.hostIdentity, localHostIdentity());
  const bool isElsewhere =
      relation == HostRelation::kOtherHost || relation == HostRelation::kOtherNetwork;
  // A ticket of this very host from before its last start looks the same.
  const char* const orIsOld =
      relation == HostRelation::kOtherHost ? ", or from before this one was restarted" : "";
  Dialer dialer(
      progress_, expected ? "context " + expected->toText() : "a context",
      [this, owner = owner_.lock(), turnBack = near != nullptr, options = std::move(options)](
          Fd socket, std::function<bool()> mayGoOn, const Dialer::Done& done) {
        return begin(std::move(socket), options, {turnBack, std::move(mayGoOn)}, done);
      });
  for (const std::string& text : ticket.addresses) {
    // Abstract names end at the network namespace; paths may be shared with containers, so they are
    // simply tried.
    if (text.starts_with("unix:@") && isElsewhere)
      dialer.leaveOut(text, whereInWords(relation) + orIsOld);
    else
      dialer.add(text);
  }
  PEERLANE_ASSIGN(auto peer, dialer.dial(deadline));
  if (!peer->turnedBack()) return Peer(std::move(peer));
  *near = peer->context();
  return peer->failure();
}

// Progress thread. Null when it could not be begun; `done` was called then.
std::shared_ptr<PeerCore> Connector::begin(Fd socket, HandshakeOptions options, DialManner manner,
                                           const Dialer::Done& done) const {
  // The goodbye went to all peers that there were.
  if (peers_.isClosing()) {
    done(nullptr,
         Status(Code::kUnavailable, "this side is leaving: its context or its process ends"));
    return nullptr;
  }
  auto peer = peers_.make(true, done);
  Status started = peer->start(std::move(socket), true, std::move(options), std::move(manner));
  if (started.isOk()) return peer;
  peers_.drop(peer->number());
  done(nullptr, std::move(started));
  return nullptr;
}

}  // namespace peerlane
