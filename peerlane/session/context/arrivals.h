// SPDX-License-Identifier: Apache-2.0
//
// Arrivals: the peers that connected to a context with its own secret and that no call has taken
// yet, also those that have left and whose messages are still to be read. accept() takes them, and
// so does code of the library that waits for something else as well (Context::arrivals). Not
// public.
//
// Threads: any, but for the calls that say otherwise. The callbacks given to onEach() and onPeer()
// run on the progress thread, without the lock. Under the lock no call of the engine is made; the
// lock of PeerTable may be taken.
// Owner: the context's state; a reference from Context::arrivals() is valid while the Context is.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "peerlane/core/log_limit.h"
#include "peerlane/core/mutex.h"
#include "peerlane/core/status.h"
#include "peerlane/os/readiness.h"
#include "peerlane/progress/progress.h"
#include "peerlane/session/context/untaken_peers.h"
#include "peerlane/session/peer/peer.h"

namespace peerlane {

class PeerTable;

class Arrivals {
 public:
  using Duration = std::chrono::nanoseconds;

  // `addresses`: where the context listens; constant once it does.
  Arrivals(Progress& progress, const PeerTable& peers, const std::vector<std::string>& addresses)
      : progress_(progress), peers_(peers), addresses_(addresses) {}

  // As Context::accept(), acceptFd() and onPeer().
  Result<Peer> accept(Duration timeout);
  Result<int> fd();
  void onPeer(std::function<void(Peer)> callback);

  // Takes no lock; a thread in Progress::wait is told of changes.
  bool any() const { return count_.load(std::memory_order_acquire) != 0; }
  std::optional<Peer> take();
  // The peer came for somebody else: accept() gives it again.
  void giveBack(const Peer& peer);
  // Called with each peer that connects from now on, before anybody can take it; null: for none.
  // The last one counts.
  void onEach(std::function<void(const Peer&)> callback);
  Progress& progress() const { return progress_; }
  // "; it can be reached at ...", and why the last guest was turned away: for timeouts.
  std::string whereInWords() const;
  // For dumps: those that wait.
  std::vector<std::shared_ptr<PeerCore>> waiting() const;
  // Logs that the messages of a peer that left before it was taken are dropped; null: nothing.
  void noteLostMessages(const std::shared_ptr<PeerCore>& dropped);

  // --- Progress thread ---
  // The peer is ready.
  void admit(const std::shared_ptr<PeerCore>& peer);
  // A peer, of these or not, has left the table.
  void left(const std::shared_ptr<PeerCore>& peer);
  // A guest did not become a peer.
  void noteTurnedAway(const Status& why);
  // The context ends: lets go of all that wait and of the callbacks.
  void close();

 private:
  using Clock = std::chrono::steady_clock;

  void updateReadiness() PEERLANE_REQUIRES(mutex_);

  Progress& progress_;
  const PeerTable& peers_;
  const std::vector<std::string>& addresses_;

  std::atomic<size_t> count_{0};  // of waiting_; release under mutex_, acquire by any()
  mutable Mutex mutex_;
  UntakenPeers waiting_ PEERLANE_GUARDED_BY(mutex_);
  Readiness ready_ PEERLANE_GUARDED_BY(mutex_);  // for threads that poll
  LogLimit lostMessages_ PEERLANE_GUARDED_BY(mutex_);
  std::function<void(Peer)> onPeer_ PEERLANE_GUARDED_BY(mutex_);
  std::function<void(const Peer&)> onEach_ PEERLANE_GUARDED_BY(mutex_);
  bool isClosed_ PEERLANE_GUARDED_BY(mutex_) = false;
  Status turnedAway_ PEERLANE_GUARDED_BY(mutex_);  // why the last guest was
  Clock::time_point turnedAwayAt_ PEERLANE_GUARDED_BY(mutex_){};
};

}  // namespace peerlane
