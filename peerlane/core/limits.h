// SPDX-License-Identifier: Apache-2.0
//
// What a program may have under way with one peer, and what happens beyond: docs/limits.md has the
// same numbers with the answers that a caller gets. All of them are constants of the wire or of
// both sides: none can be set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace peerlane::limits {

// Peer::sendMessage: bytes of one; how many wait at the peer (or on their way there) until it takes
// them, on one channel and on all channels of the program together. Beyond: kTryAgain.
inline constexpr size_t kMessageBytes = 4096;
inline constexpr uint32_t kMessagesPerChannel = 64;
inline constexpr uint32_t kMessagesPerPeer = 1024;

// Notify::message: bytes of one; how many the peer's memory takes before its program asks for
// notifications at all, and how many the library there takes out of it and keeps once it has asked;
// how many may wait here for room there. Beyond: kTryAgain.
inline constexpr size_t kNotificationBytes = 4096;
inline constexpr uint32_t kNotificationSlots = 16;
inline constexpr uint32_t kNotificationsTaken = 1024;
inline constexpr uint32_t kNotificationsWaiting = 1024;

// Peers that connected, left messages, and were gone before accept() took them: beyond, those of
// the first are dropped.
inline constexpr uint32_t kPeersLeft = 16;

// Signals of one peer, numbered from 0.
inline constexpr uint32_t kSignals = 64;

// Imports of one peer's regions that are under way; more wait here for those.
inline constexpr uint32_t kImportsUnderWay = 32;

// Answers that a peer asked for and does not read: beyond these bytes or descriptors nothing more
// is read from it until it does.
inline constexpr size_t kAnswerBytes = size_t{1} << 20;
inline constexpr size_t kAnswerDescriptors = 64;

// Regions that their owner takes back at once: more wait there until the peer has confirmed some,
// which it does when its transfers have let go of them. A peer that asks for more breaks the rules
// and is lost.
inline constexpr size_t kRevocations = 4096;

// Notes of a communicator's set-up, and tickets of a rendezvous, that are kept until this side is
// as far. A peer that says more is refused.
inline constexpr size_t kEarlyNotes = 1024;
inline constexpr uint32_t kRanks = 4096;

}  // namespace peerlane::limits
