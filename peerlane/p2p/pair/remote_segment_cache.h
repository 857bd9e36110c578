// SPDX-License-Identifier: Apache-2.0
//
// RemoteSegmentCache: the regions of the other side's segments, for one communicator. It asks the
// other side how a segment is reached, keeps the answer until the segment is taken out of use, and
// gives it to copies, which wait for it. Threads: any; onAnswer() is the progress thread's. Owner:
// PairCommunicator.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "peerlane/core/mutex.h"
#include "peerlane/p2p/pair/pair_note_channel.h"
#include "peerlane/p2p/result_code.h"
#include "peerlane/p2p/segment/segment_name.h"
#include "peerlane/session/peer/peer.h"
#include "peerlane/session/wire/ticket.h"

namespace peerlane::p2p {

class RemoteSegmentCache {
 public:
  // `self`: the context at this end of the connection. `timeout`: for one answer of the other side.
  // `notes` outlives it.
  RemoteSegmentCache(Peer peer, const ContextId& self, std::chrono::nanoseconds timeout,
                     const PairNoteChannel& notes);

  // Asks the other side, unless that was done before, and does not wait: so that a later find()
  // need not wait either.
  void ask(const SegmentName& name);
  void forget(const SegmentName& name);
  // Waits for the answer if it has not come. HCCL_E_NOT_FOUND (the owner has unregistered the
  // segment, or forget() was called during the wait), the owner's refusal, kTimeout, kPeerLost.
  Answer find(const SegmentName& name, RemoteRegion& found);
  // The other side's answer.
  void onAnswer(const PairNote& note);

 private:
  using Answered = std::optional<Result<RemoteRegion>>;
  struct Entry {
    Answered remote;  // nothing until the answer has come
    bool isAsked = false;
  };
  bool isSettled(uint64_t number, Answered& remote);
  Answer awaitAnswer(const SegmentName& name, Answered& remote);

  const Peer peer_;
  const ContextId self_;
  const std::chrono::nanoseconds timeout_;
  const PairNoteChannel& notes_;
  Mutex mutex_;
  std::map<uint64_t, Entry> entries_ PEERLANE_GUARDED_BY(mutex_);  // by number of the segment
};

}  // namespace peerlane::p2p
