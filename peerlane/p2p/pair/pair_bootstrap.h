// SPDX-License-Identifier: Apache-2.0
//
// PairBootstrap: the handshake of the two sides of a communicator on a connection that they already
// have. Each side sends one hello (its kind, link and process), waits for the other's, and checks
// that the two go together; both sides find the same. Not the way to the connection itself: that
// is process/root_bootstrap.h. Threads: handshake() and conclude() belong to the thread that
// creates the communicator; onHello() and onGaveUp() to the progress thread, at the same time.
// Owner: PairCommunicator.
#pragma once

#include <atomic>
#include <optional>

#include "peerlane/core/mutex.h"
#include "peerlane/p2p/pair/pair_note_channel.h"
#include "peerlane/p2p/pair/pair_options.h"
#include "peerlane/progress/progress.h"

namespace peerlane::p2p {

class PairBootstrap {
 public:
  // `notes` outlives it.
  PairBootstrap(Peer peer, const PairOptions& options, const PairNoteChannel& notes);

  // Sends the hello of `process`, which is this one, and returns the other side's. Errors:
  // kInvalidArgument (the kinds or links do not go together), kNotSupported (the connection has not
  // the link that options.link asks for), kTimeout, kPeerLost.
  Result<PairNote> handshake(const ProcessToken& process, Progress::Clock::time_point deadline);
  // The error with which the creation of the communicator ended, made plain to both sides: after
  // kTimeout it tells the other side that this one waits no longer; kPeerLost becomes kTryAgain
  // where the other side has said the same.
  Status conclude(Status error) const;

  void onHello(Result<PairNote> hello);
  void onGaveUp() { otherGaveUp_.store(true, std::memory_order_release); }

 private:
  Result<PairNote> awaitHello(const Status& sent, Progress::Clock::time_point deadline);
  Status checkOther(const PairNote& other) const;
  Status checkLink() const;

  const Peer peer_;
  const PairOptions options_;
  const PairNoteChannel& notes_;
  Mutex mutex_;
  std::optional<Result<PairNote>> hello_ PEERLANE_GUARDED_BY(mutex_);  // the other side's
  // That hello_ is there. Release by onHello(), acquire by awaitHello(), which must not take mutex_
  // while the progress engine has it look.
  std::atomic<bool> hasHello_{false};
  std::atomic<bool> otherGaveUp_{false};  // release by onGaveUp(), acquire by conclude()
};

}  // namespace peerlane::p2p
