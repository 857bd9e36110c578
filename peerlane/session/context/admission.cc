// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/context/admission.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "peerlane/core/log.h"
#include "peerlane/os/socket.h"
#include "peerlane/os/unix_peer.h"
#include "peerlane/session/context/arrivals.h"
#include "peerlane/session/context/peer_table.h"

namespace peerlane {
namespace {

// Connections that are not peers yet, and how long one may keep silent.
constexpr GuestList::Limits kGuests{.inAll = 256, .ofOne = 128};
constexpr std::chrono::seconds kHelloPatience{3};

// As far as the socket takes it at once: nobody waits for a guest that cannot stay.
void sendReason(int socket, Handshake::Reason reason) {
  const auto words = Handshake::rejectionFor(reason);
  (void)sendSome(socket, words);
}

// A guest's place is counted for its user on this host, or for its address. An error: the guest may
// not come in at all. The secret proves that a guest may connect; on one host the user must be the
// same as well, or an administrator.
Result<std::string> originOf(int socket) {
  PEERLANE_ASSIGN(const SocketAddress local, localAddress(socket));
  if (!local.isUnix()) {
    PEERLANE_ASSIGN(const SocketAddress from, peerAddress(socket));
    return from.ip();
  }
  PEERLANE_ASSIGN(const PeerCredentials who, peerCredentials(socket));
  PEERLANE_RETURN_IF_ERROR(checkUser(who));
  return "user " + std::to_string(who.uid);
}

HandshakeOptions withKeyId(HandshakeOptions options) {
  options.keyId = keyIdOf(options.secret);
  return options;
}

}  // namespace

Admission::Admission(Surroundings around, HandshakeOptions self)
    : around_(around), self_(withKeyId(std::move(self))), guests_(kGuests) {}

void Admission::refuse(int socket) {
  sendReason(socket, Handshake::Reason::kNoRoom);
}

void Admission::turnAway(int socket, const Status& why, Handshake::Reason reason) {
  sendReason(socket, reason);
  if (around_.strangers.allows())
    PEERLANE_LOG_WARN("a connection was turned away: {}{}", why.message(),
                      around_.strangers.leftOut());
}

void Admission::take(Fd socket) {
  const auto origin = originOf(socket.get());
  if (!origin.isOk()) return turnAway(socket.get(), origin.status(), Handshake::Reason::kOtherUser);
  auto place = guests_.admit(*origin);
  if (!place.isOk()) return turnAway(socket.get(), place.status(), Handshake::Reason::kNoRoom);
  const auto ticket = std::make_shared<Invitations::InvitedRef>();
  const auto guest = makeGuest(std::move(*place), ticket);
  if (Status status = guest->start(std::move(socket), false, optionsFor(ticket)); !status.isOk()) {
    PEERLANE_LOG_WARN("incoming connection: {}", status.toString());
    around_.peers.drop(guest->number());
  }
}

// The place is free again when the guest has become a peer, or left.
std::shared_ptr<PeerCore> Admission::makeGuest(GuestList::Place place, const Ticket& ticket) {
  return around_.peers.make(
      false, [this, ticket, kept = std::make_shared<GuestList::Place>(std::move(place))](
                 const std::shared_ptr<PeerCore>& connected, const Status& status) {
        if (!status.isOk()) return around_.arrivals.noteTurnedAway(status);
        if (*ticket)
          around_.invitations.admit(*ticket, connected);
        else
          around_.arrivals.admit(connected);
      });
}

HandshakeOptions Admission::optionsFor(const Ticket& ticket) const {
  HandshakeOptions options = self_;
  options.patience =
      std::min<std::chrono::nanoseconds>(kHelloPatience, around_.config.connectTimeout);
  options.otherSecret = [this, ticket](uint32_t keyId, const HandshakeOptions::Fits& fits)
      -> std::optional<HandshakeOptions::OtherSecret> {
    const auto found = around_.invitations.find(keyId, fits);
    *ticket = found.invited;
    if (!found.invited) return std::nullopt;
    return HandshakeOptions::OtherSecret{found.invited->secret, found.hasRoom};
  };
  return options;
}

}  // namespace peerlane
