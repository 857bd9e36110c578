// SPDX-License-Identifier: Apache-2.0
//
// PairNoteChannel: carries the PairNotes of one communicator over the control connection of its
// peer; the receiver knows what they mean. Thread-safe; notes arrive on the progress
// thread. Owner: PairCommunicator.
#pragma once

#include <functional>
#include <utility>

#include "peerlane/p2p/pair/pair_note.h"
#include "peerlane/session/peer/peer.h"

namespace peerlane::p2p {

class PairNoteChannel {
 public:
  using Receive = std::function<void(Result<PairNote> note)>;

  explicit PairNoteChannel(Peer peer) : peer_(std::move(peer)) {}

  // `receive` is called on the progress thread for each note, also for those that have come before,
  // in their order; an error stands for bytes that are no note.
  void listen(Receive receive);
  // Returns when no note is being received; none is received afterwards. Not on the progress
  // thread.
  void stop();
  // Errors: kPeerLost, kPeerSilent, and others of a connection that cannot send now.
  Status send(const PairNote& note) const;

 private:
  const Peer peer_;
};

}  // namespace peerlane::p2p
