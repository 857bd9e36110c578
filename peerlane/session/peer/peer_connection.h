// SPDX-License-Identifier: Apache-2.0
//
// PeerConnection: the control connection with one peer from the first byte to the last: it learns
// which peer that is, tells its messages, and ends everything in order when the peer is lost or
// closed. Owned by PeerCore; confined to the progress thread, but for the functions that are named
// as any thread's.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <utility>

#include "peerlane/os/event_loop.h"
#include "peerlane/os/fd.h"
#include "peerlane/session/peer/goodbye.h"
#include "peerlane/session/peer/heartbeat.h"
#include "peerlane/session/peer/link_negotiation.h"
#include "peerlane/session/peer/peer_environment.h"
#include "peerlane/session/peer/remote_process.h"
#include "peerlane/session/peer/user_messages.h"
#include "peerlane/session/wire/handshake.h"

namespace peerlane {

// The purpose of an attempt to reach a peer.
struct DialManner {
  bool turnBackIfNear = false;  // see PeerConnection::turnedBack()
  // Asked once, when the other side has shown that it knows the secret. False: another attempt to
  // reach it was faster.
  std::function<bool()> mayGoOn{};
};

class PeerConnection {
 public:
  using Clock = std::chrono::steady_clock;
  struct Parts {
    RemoteProcess& process;
    const LinkSet& links;
    LinkNegotiation& negotiation;
    UserMessages& messages;
    Goodbye& goodbye;
  };
  struct Events {
    // Of a peer that is neither lost nor closed. An error ends the connection with it.
    std::function<Status(ControlMessage&)> message;
    // Once: the peer is lost or closed, which its status says. Pending work ends now.
    std::function<void(const Status&)> ended;
  };
  PeerConnection(PeerEnvironment& env, Parts parts, Events events)
      : env_(env),
        parts_(parts),
        events_(std::move(events)),
        heartbeat_(env, parts.messages, parts.links) {}

  Status start(Fd socket, bool connecting, HandshakeOptions options, DialManner manner);
  // All that a peer needs to be ready is there.
  void endSetup();
  // Dialled by IP, the peer said who it is, and that it is on this host: nothing was set up,
  // because its Unix socket is the better way. Constant once connecting has failed.
  bool turnedBack() const { return turnedBack_; }
  Status handle(control::Bye& message);
  Status handle(control::Heartbeat& message) { return heartbeat_.handle(message); }
  // No link is left to go on with.
  void lose(const Status& why) { fail(PeerState::kLost, why); }

  // --- Any thread ---
  // Not where a turn waits for it. Nothing: the connection has ended.
  std::optional<Clock::duration> silentFor() const;
  // Says goodbye and ends everything with kClosed.
  void close();

 private:
  void onAuthenticated(const PeerIdentity& identity);
  void onProcessEnded();
  void onMessage(ControlMessage message);
  void onLateMessage(ControlMessage& message);
  void onEnded(Status status);
  void fail(PeerState state, const Status& status);
  void log(PeerState before, PeerState state, const Status& status) const;
  const char* nextOfSetup() const;

  PeerEnvironment& env_;
  const Parts parts_;
  const Events events_;
  Heartbeat heartbeat_;
  Timer setupTimer_;
  DialManner manner_;
  bool turnedBack_ = false;
};

}  // namespace peerlane
