// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/context/peer_table.h"

#include <algorithm>
#include <utility>

#include "peerlane/progress/progress.h"

namespace peerlane {

std::shared_ptr<PeerCore> PeerTable::make(bool initiator, Connected report) {
  const PeerSurroundings around = events_.surroundings();
  const MutexLock lock(mutex_);
  const Number number = next_++;
  auto& slot = peers_[number];
  slot = std::make_shared<PeerCore>(
      number, around, initiator,
      PeerCore::Events{
          .connected = [this, number, report = std::move(report)](
                           Status status) { connected(number, report, std::move(status)); },
          .gone = [this, number](const std::shared_ptr<PeerCore>& peer) { left(number, peer); }});
  return slot;
}

void PeerTable::connected(Number number, const Connected& report, Status status) {
  if (const auto peer = find(number)) report(peer, std::move(status));
}

void PeerTable::left(Number number, const std::shared_ptr<PeerCore>& peer) {
  drop(number);
  events_.left(peer);
  // The peer may be inside one of its own callbacks: its last reference goes later, on this thread.
  progress_.post([peer] {});
}

void PeerTable::drop(Number number) {
  const MutexLock lock(mutex_);
  peers_.erase(number);
}

std::vector<std::shared_ptr<PeerCore>> PeerTable::beginClosing() {
  const MutexLock lock(mutex_);
  isClosing_ = true;
  std::vector<std::shared_ptr<PeerCore>> peers;
  for (const auto& [number, peer] : peers_) peers.push_back(peer);
  return peers;
}

std::shared_ptr<PeerCore> PeerTable::find(Number number) const {
  const MutexLock lock(mutex_);
  const auto found = peers_.find(number);
  return found == peers_.end() ? nullptr : found->second;
}

bool PeerTable::contains(Number number) const {
  const MutexLock lock(mutex_);
  return peers_.contains(number);
}

std::string PeerTable::inWords(Number number) const {
  const MutexLock lock(mutex_);
  const auto found = peers_.find(number);
  if (found == peers_.end()) return {};
  return found->second->name() + " " + peerStateName(found->second->state());
}

std::vector<std::shared_ptr<PeerCore>> PeerTable::all() const {
  const MutexLock lock(mutex_);
  std::vector<std::shared_ptr<PeerCore>> peers;
  for (const auto& [number, peer] : peers_) peers.push_back(peer);
  return peers;
}

std::vector<Peer> PeerTable::met() const {
  const MutexLock lock(mutex_);
  std::vector<Peer> peers;
  for (const auto& [number, peer] : peers_)
    if (peer->met()) peers.emplace_back(peer);
  return peers;
}

bool PeerTable::isClosing() const {
  const MutexLock lock(mutex_);
  return isClosing_;
}

bool PeerTable::haveLeft() const {
  const MutexLock lock(mutex_);
  return isClosing_ && peers_.empty();
}

bool PeerTable::haveSaidAll() const {
  const MutexLock lock(mutex_);
  return isClosing_ &&
         std::ranges::all_of(peers_, [](const auto& each) { return each.second->hasSaidAll(); });
}

PeerTable::PeerMap PeerTable::takeRest() {
  const MutexLock lock(mutex_);
  return std::exchange(peers_, {});
}

}  // namespace peerlane
