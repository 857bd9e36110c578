// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/peer/peer_connection.h"

#include <string>
#include <utility>
#include <variant>

#include "peerlane/core/log.h"

namespace peerlane {

Status PeerConnection::start(Fd socket, bool connecting, HandshakeOptions options,
                             DialManner manner) {
  EventLoop& loop = env_.around.progress.loop();
  manner_ = std::move(manner);
  // The handshake may run to its end inside create() only for events of the loop, so `this` is
  // complete by then.
  PEERLANE_ASSIGN(
      env_.connection,
      ControlConnection::create(
          loop, std::move(socket), connecting,
          env_.initiator ? Handshake::Role::kInitiator : Handshake::Role::kAcceptor,
          std::move(options),
          {.authenticated = [this](const PeerIdentity& identity) { onAuthenticated(identity); },
           .message = [this](ControlMessage message) { onMessage(std::move(message)); },
           .ended = [this](Status status) { onEnded(std::move(status)); }}));
  const auto patience = env_.around.config.connectTimeout;
  setupTimer_ = loop.after(patience, [this, patience] {
    fail(PeerState::kLost,
         Status(Code::kTimeout, "the peer did not finish connecting in time: waited " +
                                    durationInWords(patience) +
                                    " (PEERLANE_CONNECT_TIMEOUT) for it " + nextOfSetup()));
  });
  return Status::ok();
}

const char* PeerConnection::nextOfSetup() const {
  if (parts_.process.identity().context.isNull()) return "to say who it is";
  if (!parts_.links.isMade()) return "to say which links it has";
  if (!parts_.links.pending().isOk()) return "to make a data connection";
  return "to name the memory that it keeps for this side";
}

void PeerConnection::onAuthenticated(const PeerIdentity& identity) {
  RemoteProcess& process = parts_.process;
  process.meet(identity, *env_.connection, env_.initiator);
  const bool isUnix = process.facts().unixSocket;
  if (manner_.turnBackIfNear && !isUnix && process.sameHostByClaim()) {
    turnedBack_ = true;
    return fail(PeerState::kLost, Status(Code::kUnavailable, "the peer is on this host"));
  }
  // Before anything is offered: the other side does not see a peer that leaves at once.
  if (manner_.mayGoOn && !manner_.mayGoOn())
    return fail(PeerState::kLost,
                Status(Code::kClosed, "the peer was reached at another address before"));
  Status status;
  if (isUnix)
    status =
        process.watch(env_.around.progress.loop(), *env_.connection, [this] { onProcessEnded(); });
  if (status.isOk()) status = parts_.negotiation.begin();
  if (!status.isOk()) fail(PeerState::kLost, status);
}

void PeerConnection::onProcessEnded() {
  const auto kept = env_.peer.lock();
  // Its last messages lie in this side's socket, and came before its end.
  env_.connection->readRest();
  parts_.goodbye.setLeft();
  if (env_.status.over()) return parts_.goodbye.end();
  fail(PeerState::kLost,
       Status(Code::kPeerLost, "process " + std::to_string(parts_.process.id()) + " ended"));
}

void PeerConnection::endSetup() {
  setupTimer_.cancel();
  parts_.process.watchMemory();
  heartbeat_.start();
}

void PeerConnection::onMessage(ControlMessage message) {
  if (env_.status.over()) return onLateMessage(message);
  heartbeat_.heard();
  if (Status status = events_.message(message); !status.isOk()) fail(PeerState::kLost, status);
}

// Only the goodbye of the other side matters now, and user messages before it.
void PeerConnection::onLateMessage(ControlMessage& message) {
  if (auto* last = std::get_if<control::UserMessage>(&message); last && !parts_.messages.ended())
    (void)parts_.messages.handle(*last);
  if (!std::holds_alternative<control::Bye>(message)) return;
  parts_.goodbye.setLeft();
  parts_.goodbye.endMessages();
  parts_.goodbye.end();
}

void PeerConnection::onEnded(Status status) {
  if (parts_.goodbye.isProven()) parts_.goodbye.setLeft();
  if (env_.status.over()) {
    parts_.goodbye.endMessages();
    return parts_.goodbye.end();
  }
  if (env_.status.state() != PeerState::kConnecting)
    status = status.withContext("the control connection ended");
  fail(PeerState::kLost, status);
}

Status PeerConnection::handle(control::Bye& message) {
  parts_.goodbye.setLeft();
  if (env_.status.state() == PeerState::kConnecting && message.code != Code::kOk) {
    const std::string why = "the peer refused: " + message.reason;
    // The peer was the first to find out; here it would have been the same.
    if (message.code == Code::kNotSupported && env_.initiator && !parts_.links.isMade() &&
        !parts_.negotiation.offersLink())
      return Status(Code::kNotSupported,
                    std::string(parts_.negotiation.noLink().message()) + "; " + why);
    return Status(message.code, why);
  }
  std::string text = "the peer closed the connection";
  if (!message.reason.empty()) text += ": " + message.reason;
  return Status(Code::kPeerLost, text);
}

// A stranger that may not connect here, or does not speak as it should, has no caller on this side,
// so the log says it; that it merely left again, or found a better way here, is not worth a
// warning.
void PeerConnection::log(PeerState before, PeerState state, const Status& status) const {
  const Code code = status.code();
  const bool isTurnedAway = before == PeerState::kConnecting && !env_.initiator &&
                            code != Code::kPeerLost && code != Code::kUnavailable &&
                            code != Code::kClosed;
  if (state == PeerState::kLost && before != PeerState::kConnecting && code != Code::kPeerLost)
    PEERLANE_LOG_ERROR("peer {}: {}", env_.number, status.toString());
  else if (!isTurnedAway)
    PEERLANE_LOG_INFO("peer {}: {}", env_.number, status.toString());
  else if (env_.around.strangers.allows())
    PEERLANE_LOG_WARN("peer {} was turned away: {}{}", env_.number, status.toString(),
                      env_.around.strangers.leftOut());
}

void PeerConnection::fail(PeerState state, const Status& status) {
  if (env_.status.over()) return;
  const PeerState before = env_.status.state();
  log(before, state, status);
  const bool isTheReason = before == PeerState::kConnecting || state == PeerState::kClosed ||
                           status.code() == Code::kPeerLost;
  const Status told = isTheReason ? status : Status(Code::kPeerLost, std::string(status.message()));
  // Whoever connects knows to whom; a program with several peers is told which one has ended.
  env_.status.setFailure(before == PeerState::kConnecting ? told : told.withContext(env_.name()));
  parts_.goodbye.begin(state, status);
  env_.status.setOver(state);
  heartbeat_.stop();
  setupTimer_.cancel();
  events_.ended(status);
  // Waiters look at the state; runs of this peer are cancelled by their next turn.
  env_.around.progress.notifyWaiters();
  parts_.goodbye.go(status);
}

std::optional<PeerConnection::Clock::duration> PeerConnection::silentFor() const {
  std::optional<Clock::duration> silence;
  const auto look = [&] {
    if (!env_.status.over() && env_.connection)
      silence = Clock::now() - env_.connection->lastHeard();
  };
  Progress& progress = env_.around.progress;
  if (progress.onLoopThread())
    look();
  else
    (void)progress.call(look);
  return silence;
}

void PeerConnection::close() {
  const auto act = [this, kept = env_.peer.lock()] {
    fail(PeerState::kClosed, Status(Code::kClosed, "closed by this side"));
    parts_.goodbye.endMessages();
  };
  Progress& progress = env_.around.progress;
  if (progress.onLoopThread())
    act();
  else
    (void)progress.call(act);
}

}  // namespace peerlane
