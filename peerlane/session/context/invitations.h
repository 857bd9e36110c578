// SPDX-License-Identifier: Apache-2.0
//
// Invitations: the tickets of one context: the text of its own, and those with a secret for one
// peer alone, with the guests that came by each and were not taken. Context::invite() and the
// Invitation handle are its faces.
//
// Threads: any, but for the calls that say otherwise. Under its lock no call of the engine and no
// call that changes a peer is made.
// Owner: the context's state.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "peerlane/core/mutex.h"
#include "peerlane/core/status.h"
#include "peerlane/progress/progress.h"
#include "peerlane/session/context/untaken_peers.h"
#include "peerlane/session/peer/peer.h"
#include "peerlane/session/wire/handshake.h"
#include "peerlane/session/wire/ticket.h"

namespace peerlane {

class Arrivals;

// One ticket for one peer. Under the lock of Invitations but for `secret` and `keyId`, which are
// constant, and `settled`.
struct Invited {
  Secret secret;
  uint32_t keyId = 0;  // what hellos call it
  // One that comes back at once may be here before its end is known.
  static constexpr size_t kMostGuests = 8;
  UntakenPeers guests;
  Status over;                       // why no peer will come any more
  bool isTaken = false;              // that is why
  std::atomic<bool> settled{false};  // release after a guest or the above; acquire by accept()
  bool hasRoom() const { return guests.living() < kMostGuests; }
};

class Invitations {
 public:
  using Duration = std::chrono::nanoseconds;
  using InvitedRef = std::shared_ptr<Invited>;

  // `addresses`: where the context listens; constant once it does.
  Invitations(Progress& progress, const ContextId& id, const std::vector<std::string>& addresses,
              const Arrivals& arrivals)
      : progress_(progress), id_(id), addresses_(addresses), arrivals_(arrivals) {}

  // As Context::ticket() and Invitation::ticket(), for their secrets.
  std::string ticketText(const Secret& secret) const;

  InvitedRef invite();
  // As the calls of Invitation.
  Result<Peer> accept(const InvitedRef& invited, Duration timeout);
  bool reopen(const InvitedRef& invited);
  void cancel(const InvitedRef& invited);
  // For dumps: all guests that wait.
  std::vector<std::shared_ptr<PeerCore>> waiting() const;

  // --- Progress thread ---
  // The one with this key whose secret fits, and whether it has room for a guest. Null: none.
  struct Found {
    InvitedRef invited;
    bool hasRoom = true;
  };
  Found find(uint32_t keyId, const HandshakeOptions::Fits& fits) const;
  // A peer that connected with the ticket is ready. Closed where no guest may come any more.
  void admit(const InvitedRef& invited, const std::shared_ptr<PeerCore>& peer);
  // A peer, a guest or not, has left the table. Returns those whose messages are lost; some are
  // null.
  std::vector<std::shared_ptr<PeerCore>> left(const std::shared_ptr<PeerCore>& peer);
  // The context ends, and with it every invitation whose peer was not taken.
  void close();

 private:
  void forgetKey(const InvitedRef& invited) PEERLANE_REQUIRES(mutex_);

  Progress& progress_;
  const ContextId id_;
  const std::vector<std::string>& addresses_;
  const Arrivals& arrivals_;  // for the words of timeouts
  mutable Mutex mutex_;
  // Those whose peer was not taken.
  std::multimap<uint32_t, InvitedRef> byKey_ PEERLANE_GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<Invited>> all_ PEERLANE_GUARDED_BY(mutex_);
  bool isClosed_ PEERLANE_GUARDED_BY(mutex_) = false;
};

}  // namespace peerlane
