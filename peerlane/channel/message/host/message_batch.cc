// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/message/host/message_batch.h"

#include <algorithm>

#include "peerlane/channel/message/host/message_lane.h"

namespace peerlane {

MessageBatch::~MessageBatch() {
  for (const auto& region : regions_) region->gate.leave();
}

Status MessageBatch::hold(const std::shared_ptr<RegionRecord>& region) {
  // Neighbours in a batch mostly share their region.
  if (std::find(regions_.rbegin(), regions_.rend(), region) != regions_.rend()) return Status::ok();
  if (!region->gate.enter()) return region->whyClosed();
  regions_.push_back(region);
  return Status::ok();
}

void MessageBatch::useLane(LaneEnd& lane) {
  if (std::find(lanes_.begin(), lanes_.end(), &lane) == lanes_.end()) lanes_.push_back(&lane);
}

bool MessageBatch::isRevoked() const {
  return std::ranges::any_of(regions_, [](const auto& region) { return region->gate.isRevoked(); });
}

void MessageBatch::itemEnded(const Status& status) {
  if (!status.isOk()) {
    const bool isTold = status.code() == Code::kCancelled && !Operation::cancelled() && isRevoked();
    const MutexLock lock(failureMutex_);
    if (failure_.isOk())
      failure_ = isTold ? Status(Code::kRevoked,
                                 "the memory of a message was taken back by its provider, or "
                                 "freed, before the message had ended; its bytes are undefined")
                        : status;
  }
  if (left_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  for (const auto& region : regions_) region->gate.leave();
  regions_.clear();
  Status outcome;
  {
    const MutexLock lock(failureMutex_);
    outcome = failure_;
  }
  metrics_.ended(outcome.code()).add();
  markEnded(outcome);
}

bool MessageBatch::advanceLanes() {
  bool moved = false;
  for (LaneEnd* lane : lanes_) moved |= lane->advanceIfFree(LaneEnd::kSliceBytes);
  return moved;
}

Status MessageBatch::wait(std::chrono::nanoseconds timeout) {
  const auto words = [this] { return endInWords(); };
  PEERLANE_RETURN_IF_ERROR(progress_.wait([this] { return done(); },
                                          [this] { return advanceLanes(); },
                                          Progress::deadlineIn(timeout), words));
  return status();
}

std::string MessageBatch::describe() const {
  const size_t left = left_.load(std::memory_order_acquire);
  std::string text = std::to_string(left) + " of " + std::to_string(items_.size()) + " messages";
  if (held()) return text + ", after others on their host stream";
  for (LaneEnd* lane : lanes_)
    if (const std::string line = lane->describe(); !line.empty()) text += "; " + line;
  return text;
}

void MessageBatch::cancel() {
  Operation::cancel();
  for (LaneEnd* lane : lanes_) lane->stirCancelled();
}

void MessageBatch::runToEnd() {
  held_.store(false, std::memory_order_release);
  for (LaneEnd* lane : lanes_) lane->stir();
  // A lapse only means another look.
  while (!done()) (void)wait(std::chrono::seconds(1));
}

}  // namespace peerlane
