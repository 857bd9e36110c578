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
  const std::lock_guard lock(mutex_);
  if (waiting_.empty()) return std::nullopt;
  Peer taken(std::move(waiting_.front()));
  waiting_.erase(waiting_.begin());
  tell();
  return taken;
}

// Under mutex_, after every change of waiting_.
void Arrivals::tell() {
  count_.store(waiting_.size(), std::memory_order_release);
  ready_.set(!waiting_.empty());
}

Result<int> Arrivals::fd() {
  const std::lock_guard lock(mutex_);
  return ready_.fd();
}

void Arrivals::onPeer(std::function<void(Peer)> callback) {
  const std::lock_guard lock(mutex_);
  onPeer_ = std::move(callback);
}

void Arrivals::onEach(std::function<void(const Peer&)> callback) {
  const std::lock_guard lock(mutex_);
  if (!isClosed_) onEach_ = std::move(callback);
}

void Arrivals::giveBack(const Peer& peer) {
  {
    const std::lock_guard lock(mutex_);
    // Asked under the lock: where the peer leaves after that, left() finds it here.
    if (isClosed_ || !peers_.contains(peer.core()->number())) return;
    waiting_.push_back(peer.core());
    tell();
  }
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
  const std::lock_guard lock(mutex_);
  if (onPeer_) text += "; peers that connect go to the callback given to onPeer()";
  if (!turnedAway_.isOk())
    text += "; the last one that came, " + durationInWords(Clock::now() - turnedAwayAt_) +
            " ago, was turned away: " + turnedAway_.toString();
  return text;
}

std::vector<std::shared_ptr<PeerCore>> Arrivals::waiting() const {
  const std::lock_guard lock(mutex_);
  return waiting_;
}

void Arrivals::admit(const std::shared_ptr<PeerCore>& peer) {
  std::function<void(Peer)> callback;
  std::function<void(const Peer&)> first;
  {
    const std::lock_guard lock(mutex_);
    first = onEach_;
  }
  if (first) first(Peer(peer));
  {
    const std::lock_guard lock(mutex_);
    if (onPeer_)
      callback = onPeer_;
    else
      waiting_.push_back(peer);
    tell();
  }
  if (callback) callback(Peer(peer));
  progress_.notifyWaiters();
}

// One that left before a call took it is still handed out where it has left messages. Where there
// are too many of those, the messages of the oldest one are lost.
void Arrivals::left(const std::shared_ptr<PeerCore>& peer) {
  std::shared_ptr<PeerCore> dropped;
  {
    const std::lock_guard lock(mutex_);
    if (!peer->messages().hasForProgram()) std::erase(waiting_, peer);
    dropped = dropOldestLeft();
    tell();
  }
  if (dropped && strangers_.allows())
    PEERLANE_LOG_WARN(
        "messages of {} are lost: it left before it was accepted, as did "
        "{} others since{}",
        dropped->name(), limits::kPeersLeft, strangers_.leftOut());
}

// Under mutex_. Null where there are not too many.
std::shared_ptr<PeerCore> Arrivals::dropOldestLeft() {
  const auto hasLeft = [this](const auto& each) { return !peers_.contains(each->number()); };
  if (std::ranges::count_if(waiting_, hasLeft) <= ptrdiff_t{limits::kPeersLeft}) return nullptr;
  const auto oldest = std::ranges::find_if(waiting_, hasLeft);
  auto dropped = *oldest;
  waiting_.erase(oldest);
  return dropped;
}

void Arrivals::noteTurnedAway(const Status& why) {
  const std::lock_guard lock(mutex_);
  turnedAway_ = why;
  turnedAwayAt_ = Clock::now();
}

void Arrivals::close() {
  std::vector<std::shared_ptr<PeerCore>> untaken;  // some have left; they end outside of the lock
  const std::lock_guard lock(mutex_);
  untaken.swap(waiting_);
  tell();
  onPeer_ = nullptr;
  onEach_ = nullptr;
  isClosed_ = true;
}

}  // namespace peerlane
