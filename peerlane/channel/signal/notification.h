// SPDX-License-Identifier: Apache-2.0
//
// Notifications: messages that puts carry (Notify::message), taken here in the order of their
// posting. A message is seen only after the bytes of its put. Thread-safe.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "peerlane/core/status.h"
#include "peerlane/session/peer/peer.h"

namespace peerlane {

struct Notification {
  uint32_t tag = 0;
  std::vector<std::byte> message;
};

// The next one of this peer, without waiting: kTryAgain when there is none; kPeerLost once the peer
// is gone and all it sent was taken.
Result<Notification> pollNotification(const Peer& peer);
// Waits for it: kTimeout, kPeerLost, kPeerSilent.
Result<Notification> waitNotification(const Peer& peer, std::chrono::nanoseconds timeout);
// A descriptor that is readable while notifications wait or the peer is gone; read nothing from it,
// poll until kTryAgain. Lifetime: the connection's.
Result<int> notificationFd(const Peer& peer);

}  // namespace peerlane
