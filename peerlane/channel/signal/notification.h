// SPDX-License-Identifier: Apache-2.0
//
// Notifications: messages that puts carry (Notify::message). The receiver takes them here in the
// order of their posting, each only after the bytes of its put. Thread-safe.
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

// Takes the next notification of this peer, without waiting: kTryAgain when there is none;
// kPeerLost once the peer is gone and everything that it sent was taken.
Result<Notification> pollNotification(const Peer& peer);
// Waits for the next one: kTimeout, kPeerLost, kPeerSilent.
Result<Notification> waitNotification(const Peer& peer, std::chrono::nanoseconds timeout);
// A descriptor that is readable while notifications wait or the peer is gone. Read nothing from it,
// but poll until kTryAgain. Lifetime: the connection's.
Result<int> notificationFd(const Peer& peer);

}  // namespace peerlane
