// SPDX-License-Identifier: Apache-2.0
#include "peerlane/p2p/pair/pair_note_channel.h"

#include <vector>

#include "peerlane/core/log.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane::p2p {

void PairNoteChannel::listen(Receive receive) {
  peer_.core()->messages().onMessage(
      kPairChannel, [to = std::move(receive)](const std::vector<std::byte>& bytes) {
        to(PairNote::decode(bytes));
      });
}

void PairNoteChannel::stop() {
  PeerCore& core = *peer_.core();
  core.messages().onMessage(kPairChannel, nullptr);
  // The progress thread may be in the receiver now: a call there begins after that.
  (void)core.progress().call([] {});
}

Status PairNoteChannel::send(const PairNote& note) const {
  Status status = peer_.core()->messages().send(kPairChannel, note.encode());
  if (!status.isOk())
    PEERLANE_LOG_DEBUG("a note to the other side of a communicator was not sent: {}",
                       status.toString());
  return status;
}

}  // namespace peerlane::p2p
