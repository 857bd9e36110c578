// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/port/transfer_queue.h"

#include <algorithm>
#include <utility>

namespace peerlane {

TransferQueue::~TransferQueue() {
  for (const Transfer& transfer : running_) transfer.cancel();
}

Status TransferQueue::health() {
  return failure_.isOk() ? straight_->health() : failure_;
}

bool TransferQueue::hasRoom() {
  return waiting_.size() + kMostPerRequest <= kMostWaiting && straight_->hasRoom();
}

Status TransferQueue::transfer(bool isPut, const Block& block) {
  if (!failure_.isOk()) return failure_;
  waiting_.push_back({.kind = Kind::kTransfer,
                      .bytes = block.bytes,
                      .isPut = isPut,
                      .local = *block.local,
                      .remote = *block.remote,
                      .localOffset = block.localOffset,
                      .remoteOffset = block.remoteOffset});
  return Status::ok();
}

Status TransferQueue::copy(const PortAddress& to, const PortAddress& from, uint64_t bytes) {
  if (!failure_.isOk()) return failure_;
  if (isStraightOnly()) return straight_->copy(to, from, bytes);
  waiting_.push_back({.kind = Kind::kCopy, .to = to, .from = from, .bytes = bytes});
  return Status::ok();
}

Status TransferQueue::store(const PortAddress& word, uint64_t value) {
  if (!failure_.isOk()) return failure_;
  if (isStraightOnly()) return straight_->store(word, value);
  waiting_.push_back({.kind = Kind::kStore, .to = word, .bytes = value});
  return Status::ok();
}

void TransferQueue::mark(Mark passed) {
  if (isStraightOnly()) return straight_->mark(std::move(passed));
  if (failure_.isOk()) waiting_.push_back({.kind = Kind::kMark, .passed = std::move(passed)});
}

bool TransferQueue::isIdle() {
  return isStraightOnly() && straight_->isIdle();
}

// status() takes a turn, so the thread that serves this queue moves the transfers as well.
bool TransferQueue::reap() {
  return std::erase_if(running_, [this](const Transfer& transfer) {
           const Status status = transfer.status();
           if (status.code() == Code::kTryAgain) return false;
           if (!status.isOk() && failure_.isOk()) failure_ = status;
           return true;
         }) != 0;
}

// False: not yet.
bool TransferQueue::begin(const Op& op) {
  if (op.kind == Kind::kTransfer) {
    if (running_.size() >= kMostRunning) return false;
    const Block block{&op.local, op.localOffset, &op.remote, op.remoteOffset, op.bytes};
    auto posted = op.isPut ? put(peer_, {&block, 1}) : get(peer_, {&block, 1});
    if (posted.isOk())
      running_.push_back(std::move(*posted));
    else
      failure_ = posted.status();
    return true;
  }
  if (op.kind != Kind::kCopy && !running_.empty()) return false;
  if (op.kind == Kind::kMark) {
    straight_->mark(op.passed);
    return true;
  }
  if (!straight_->hasRoom()) return false;
  const Status asked = op.kind == Kind::kStore ? straight_->store(op.to, op.bytes)
                                               : straight_->copy(op.to, op.from, op.bytes);
  if (!asked.isOk()) failure_ = asked;
  return true;
}

PortQueue::Advance TransferQueue::advance() {
  const Advance below = straight_->advance();
  if (isStraightOnly()) return below;
  bool moved = reap();
  while (failure_.isOk() && !waiting_.empty() && begin(waiting_.front())) {
    waiting_.pop_front();
    moved = true;
  }
  if (!failure_.isOk()) waiting_.clear();
  if (moved || below == Advance::kMoved) return Advance::kMoved;
  return Advance::kPending;
}

}  // namespace peerlane
