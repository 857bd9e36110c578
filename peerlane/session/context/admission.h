// SPDX-License-Identifier: Apache-2.0
//
// Admission: decides which incoming connections of a context may become peers. It bounds how many
// connect at once, asks for the user or address that they come from, starts their handshake with
// the secret of the context or of an invitation, and passes each new peer to Arrivals or
// Invitations.
//
// Threads: confined to the progress thread.
// Owner: the context's state.
#pragma once

#include <memory>

#include "peerlane/core/config.h"
#include "peerlane/core/log_limit.h"
#include "peerlane/os/fd.h"
#include "peerlane/os/guest_list.h"
#include "peerlane/session/context/invitations.h"
#include "peerlane/session/wire/handshake.h"

namespace peerlane {

class Arrivals;
class PeerTable;

class Admission {
 public:
  struct Surroundings {
    const Config& config;
    PeerTable& peers;
    Arrivals& arrivals;
    Invitations& invitations;
    LogLimit& strangers;  // see PeerSurroundings
  };

  // `self`: the context's own side of a handshake, with its secret.
  Admission(Surroundings around, HandshakeOptions self);

  // A connection that a listener accepted.
  void take(Fd socket);
  // Tells a connection that this process has no room for it; the caller closes it.
  static void refuse(int socket);

 private:
  // The invitation whose ticket a guest has; null: the guest has the context's own, or none.
  using Ticket = std::shared_ptr<Invitations::InvitedRef>;

  void turnAway(int socket, const Status& why, Handshake::Reason reason);
  std::shared_ptr<PeerCore> makeGuest(GuestList::Place place, const Ticket& ticket);
  HandshakeOptions optionsFor(const Ticket& ticket) const;

  const Surroundings around_;
  const HandshakeOptions self_;
  GuestList guests_;
};

}  // namespace peerlane
