// SPDX-License-Identifier: Apache-2.0
//
// PeerTable: the peers of one context by number, from the first byte of a connection until the peer
// has left. It makes them, and forgets each one when its end is known.
//
// Threads: only the progress thread changes it (takeRest() comes after that thread has ended); any
// thread may look. Under its lock no callback, no call of the engine and no call that changes a
// peer is made, so the condition of a wait may take it. It is taken after the lock of Arrivals,
// never before. Owner: the context's state, which every peer keeps alive.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "peerlane/core/mutex.h"
#include "peerlane/core/status.h"
#include "peerlane/memory/region_table.h"
#include "peerlane/session/peer/peer.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {

class PeerTable {
 public:
  using Number = RegionTable::PeerNumber;
  using PeerMap = std::map<Number, std::shared_ptr<PeerCore>>;
  // Called once, on the progress thread: the peer is ready, or why it never will be.
  using Connected = std::function<void(const std::shared_ptr<PeerCore>&, Status)>;
  struct Events {
    std::function<PeerSurroundings()> surroundings;  // of a peer that is being made
    // A peer has left, and is not in the table any more. Progress thread.
    std::function<void(const std::shared_ptr<PeerCore>&)> left;
  };

  PeerTable(Progress& progress, Events events) : progress_(progress), events_(std::move(events)) {}

  // --- Progress thread ---
  // A peer without a connection: the caller calls PeerCore::start(), and drop() where that fails.
  std::shared_ptr<PeerCore> make(bool initiator, Connected connected);
  void drop(Number number);
  // The context ends: returns all peers, for their goodbyes. They stay here until they have left.
  std::vector<std::shared_ptr<PeerCore>> beginClosing();

  // --- Any thread ---
  // Null: no peer of this number, or it has left.
  std::shared_ptr<PeerCore> find(Number number) const;
  bool contains(Number number) const;
  // "peer 3 (process 1234) ready"; empty where find() returns null. Requires: it was ready once.
  std::string inWords(Number number) const;
  // In the order of their numbers.
  std::vector<std::shared_ptr<PeerCore>> all() const;
  // Those that were ready once.
  std::vector<Peer> met() const;
  bool isClosing() const;
  // After beginClosing(): every peer has left; every peer has left or has said all (PeerCore).
  bool haveLeft() const;
  bool haveSaidAll() const;

  // Once the progress thread has ended: the peers that have not left. The table is empty then.
  PeerMap takeRest();

 private:
  void connected(Number number, const Connected& report, Status status);
  void left(Number number, const std::shared_ptr<PeerCore>& peer);

  Progress& progress_;
  const Events events_;
  mutable Mutex mutex_;
  Number next_ PEERLANE_GUARDED_BY(mutex_) = 1;
  PeerMap peers_ PEERLANE_GUARDED_BY(mutex_);
  bool isClosing_ PEERLANE_GUARDED_BY(mutex_) = false;
};

}  // namespace peerlane
