// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/signal/signal_watch.h"

#include <utility>

namespace peerlane {

SignalWatch::~SignalWatch() {
  // Dropped by an engine that stopped.
  if (peer_->forked()) return;
  if (active_) peer_->progress().bell().stopListening();
  if (expects_) peer_->progress().deviceStoresSeen();
}

// A silent peer may be heard again, and then add to the signal.
bool SignalWatch::isOver() const {
  const Code failure = peer_->failureCode();
  return failure != Code::kOk && failure != Code::kPeerSilent;
}

void SignalWatch::lookLocked() {
  wasReached_ = value() >= wanted_;
  readiness_.set(wasReached_ || peer_->failureCode() != Code::kOk);
}

Result<int> SignalWatch::fd(uint64_t value) {
  const MutexLock lock(mutex_);
  wanted_ = value;
  lookLocked();
  PEERLANE_ASSIGN(const int fd, readiness_.fd());
  if (readiness_.isReady() || std::exchange(active_, true)) return fd;
  peer_->progress().bell().listen();  // the task's first look follows
  // A store of a device wakes nobody: while one is waited for, the progress thread looks.
  if (peer_->links().devicesAdd() && !std::exchange(expects_, true))
    peer_->progress().expectDeviceStores();
  peer_->progress().add(shared_from_this());
  return fd;
}

void SignalWatch::abandon() {
  const MutexLock lock(mutex_);
  abandoned_ = true;
  readiness_ = Readiness();
}

Task::Turn SignalWatch::turn() {
  const MutexLock lock(mutex_);
  const bool wasReady = readiness_.isReady();
  if (!abandoned_) lookLocked();
  // Only a value that made the descriptor readable ends it: the value may have been reached since
  // that look.
  if (abandoned_ || (readiness_.isReady() && (wasReached_ || isOver()))) {
    active_ = false;
    peer_->progress().bell().stopListening();
    if (std::exchange(expects_, false)) peer_->progress().deviceStoresSeen();
    return Turn::kFinished;
  }
  return readiness_.isReady() == wasReady ? Turn::kIdle : Turn::kMoved;
}

std::string SignalWatch::describe() const {
  const MutexLock lock(mutex_);
  if (abandoned_) return {};
  const auto offset = static_cast<uint64_t>(word_ - peer_->slab());
  return "descriptor for signal " +
         std::to_string((offset - slab::kSignalsOffset) / slab::kWordStrideBytes) + " of peer " +
         std::to_string(peer_->number()) + ", which is " + std::to_string(value()) + ", to reach " +
         std::to_string(wanted_);
}

}  // namespace peerlane
