// SPDX-License-Identifier: Apache-2.0
//
// UntakenPeers: the peers that connected and that no call has taken yet: those that live, and those
// that have left messages and gone. Living ones are taken first, each kind in its order. Of those
// that have gone it keeps limits::kPeersLeft. External synchronization required; the caller
// destroys the peers that a call returns outside of its lock.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "peerlane/core/limits.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {

class UntakenPeers {
 public:
  using Peer = std::shared_ptr<PeerCore>;

  bool empty() const { return living_.empty() && left_.empty(); }
  size_t size() const { return living_.size() + left_.size(); }
  size_t living() const { return living_.size(); }

  void add(Peer peer) { living_.push_back(std::move(peer)); }

  // One that has gone, for its messages. Returns the one whose messages are lost for it, or null.
  [[nodiscard]] Peer addLeft(Peer peer) {
    left_.push_back(std::move(peer));
    if (left_.size() <= limits::kPeersLeft) return nullptr;
    Peer dropped = std::move(left_.front());
    left_.pop_front();
    return dropped;
  }

  // `peer` has gone: it stays for the messages it left, or leaves without any. Nothing happens
  // where it is not one of these. Returns as addLeft().
  [[nodiscard]] Peer leave(const Peer& peer) {
    if (std::erase(living_, peer) == 0 || !peer->messages().channels().hasForProgram())
      return nullptr;
    return addLeft(peer);
  }

  // Null when there is none. One that is about to leave is no use to a caller who can have another.
  Peer take() {
    auto& from = living_.empty() ? left_ : living_;
    if (from.empty()) return nullptr;
    auto best = std::ranges::find_if(from, [](const Peer& peer) { return !peer->over(); });
    if (best == from.end()) best = from.begin();
    Peer taken = std::move(*best);
    from.erase(best);
    return taken;
  }

  std::vector<Peer> takeAll() {
    std::vector<Peer> taken = all();
    living_.clear();
    left_.clear();
    return taken;
  }

  // Those that live, and then those that have left.
  std::vector<Peer> all() const {
    std::vector<Peer> all(living_.begin(), living_.end());
    all.insert(all.end(), left_.begin(), left_.end());
    return all;
  }

 private:
  std::deque<Peer> living_;
  std::deque<Peer> left_;
};

}  // namespace peerlane
