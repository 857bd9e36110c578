// SPDX-License-Identifier: Apache-2.0
//
// How much a program may have under way with one peer. docs/limits.md has the same numbers, and for
// each the answer that a caller gets beyond it. All of them are constants of the wire format or of
// both sides: no setting changes them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace peerlane::limits {

// Peer::sendMessage: the bytes of one message; how many messages may wait, at the peer or on their
// way there, until the peer's program receives them, on one channel and on all channels of the
// program together. Beyond: kTryAgain.
inline constexpr size_t kMessageBytes = 4096;
inline constexpr uint32_t kMessagesPerChannel = 64;
inline constexpr uint32_t kMessagesPerPeer = 1024;

// Notify::message: the bytes of one notification; how many the peer's inbox holds before its
// program first asks for notifications; how many the peer's library takes out of the inbox and
// keeps once the program has asked; how many may wait at this side for room in the inbox. Beyond:
// kTryAgain.
inline constexpr size_t kNotificationBytes = 4096;
inline constexpr uint32_t kNotificationSlots = 16;
inline constexpr uint32_t kNotificationsTaken = 1024;
inline constexpr uint32_t kNotificationsWaiting = 1024;

// Peers that connected, left messages, and were gone before accept() took them. Beyond: the library
// drops the messages of the peer that left first.
inline constexpr uint32_t kPeersLeft = 16;

// Signals of one peer, numbered from 0.
inline constexpr uint32_t kSignals = 64;

// Imports of one peer's regions that are under way at once; further imports wait at this side.
inline constexpr uint32_t kImportsUnderWay = 256;

// Answers that a peer asked for and does not read: beyond these bytes or descriptors this side
// reads nothing more from that peer until the peer has read some of them.
inline constexpr size_t kAnswerBytes = size_t{1} << 20;
inline constexpr size_t kAnswerDescriptors = 64;

// Revocations of one owner that are under way at once: further ones wait at the owner until the
// peer has confirmed some, which it does when its transfers no longer use those regions. A peer
// that asks for more breaks the protocol and becomes lost.
inline constexpr size_t kRevocations = 4096;

// Notes of a communicator's set-up, and tickets of a bootstrap (class Bootstrap), that this side
// keeps until it reaches the same step. A peer that sends more is refused.
inline constexpr size_t kEarlyNotes = 1024;
inline constexpr uint32_t kRanks = 4096;

}  // namespace peerlane::limits
