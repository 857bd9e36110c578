// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/context/arrivals.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "peerlane/core/limits.h"
#include "peerlane/core/log.h"
#include "peerlane/session/context/peer_table.h"

namespace peerlane {

Result<Peer> Arrivals::accept(Duration timeout) {
  const auto ready = [this] { return any(); };
  const auto deadline = Progress::deadlineIn(timeout);
  for (;;) {
    PEERLANE_RETURN_IF_ERROR(progress_.waitAsleep(
        ready, deadline, [this] { return "a peer to connect here" + whereInWords(); }));
    // Nothing where another thread was faster.
    if (auto taken = take()) return std::move(*taken);
  }
}

std::optional<Peer> Arrivals::take() {
  const MutexLock lock(mutex_);
  auto taken = waiting_.take();
  if (!taken) return std::nullopt;
  updateReadiness();
  return Peer(std::move(taken));
}

// Called after every change of waiting_.
void Arrivals::updateReadiness() {
  count_.store(waiting_.size(), std::memory_order_release);
  ready_.set(!waiting_.empty());
}

Result<int> Arrivals::fd() {
  const MutexLock lock(mutex_);
  return ready_.fd();
}

void Arrivals::onPeer(std::function<void(Peer)> callback) {
  const MutexLock lock(mutex_);
  onPeer_.swap(callback);  // the one before ends without the lock
}

void Arrivals::onEach(std::function<void(const Peer&)> callback) {
  const MutexLock lock(mutex_);
  if (!isClosed_) onEach_.swap(callback);
}

void Arrivals::giveBack(const Peer& peer) {
  std::shared_ptr<PeerCore> dropped;
  {
    const MutexLock lock(mutex_);
    if (isClosed_) return;
    // Asked under the lock: where the peer leaves after that, left() finds it here.
    if (peers_.contains(peer.core()->number()))
      waiting_.add(peer.core());
    else if (peer.core()->messages().channels().hasForProgram())
      dropped = waiting_.addLeft(peer.core());
    updateReadiness();
  }
  noteLostMessages(dropped);
  progress_.notifyWaiters();
}

std::string Arrivals::whereInWords() const {
  std::string text;
  if (std::none_of(addresses_.begin(), addresses_.end(),
                   [](const std::string& each) { return !each.starts_with("unix:"); }))
    text =
        "; this context does not listen for other hosts, nor at any IP address "
        "(ContextOptions::listen is empty)";
  text += "; it can be reached at";
  for (const std::string& address : addresses_) text += " " + address;
  const MutexLock lock(mutex_);
  if (onPeer_) text += "; peers that connect go to the callback given to onPeer()";
  if (!turnedAway_.isOk())
    text += "; the last one that came, " + durationInWords(Clock::now() - turnedAwayAt_) +
            " ago, was turned away: " + turnedAway_.toString();
  return text;
}

std::vector<std::shared_ptr<PeerCore>> Arrivals::waiting() const {
  const MutexLock lock(mutex_);
  return waiting_.all();
}

void Arrivals::admit(const std::shared_ptr<PeerCore>& peer) {
  std::function<void(Peer)> callback;
  std::function<void(const Peer&)> first;
  {
    const MutexLock lock(mutex_);
    first = onEach_;
  }
  if (first) first(Peer(peer));
  {
    const MutexLock lock(mutex_);
    if (onPeer_)
      callback = onPeer_;
    else
      waiting_.add(peer);
    updateReadiness();
  }
  if (callback) callback(Peer(peer));
  progress_.notifyWaiters();
}

// One that left before a call took it is still handed out where it has left messages.
void Arrivals::left(const std::shared_ptr<PeerCore>& peer) {
  std::shared_ptr<PeerCore> dropped;
  {
    const MutexLock lock(mutex_);
    dropped = waiting_.leave(peer);
    updateReadiness();
  }
  noteLostMessages(dropped);
}

void Arrivals::noteLostMessages(const std::shared_ptr<PeerCore>& dropped) {
  if (!dropped) return;
  std::string leftOut;
  {
    const MutexLock lock(mutex_);
    if (!lostMessages_.allows()) return;
    leftOut = lostMessages_.leftOut();
  }
  PEERLANE_LOG_WARN(
      "messages of {} are lost: it left before it was accepted, as did {} others since{}",
      dropped->name(), limits::kPeersLeft, leftOut);
}

void Arrivals::noteTurnedAway(const Status& why) {
  const MutexLock lock(mutex_);
  turnedAway_ = why;
  turnedAwayAt_ = Clock::now();
}

void Arrivals::close() {
  // What ends with these, a program's own objects among them, ends without the lock.
  std::vector<std::shared_ptr<PeerCore>> untaken;
  std::function<void(Peer)> onPeer;
  std::function<void(const Peer&)> onEach;
  const MutexLock lock(mutex_);
  untaken = waiting_.takeAll();
  updateReadiness();
  onPeer.swap(onPeer_);
  onEach.swap(onEach_);
  isClosed_ = true;
}

}  // namespace peerlane
