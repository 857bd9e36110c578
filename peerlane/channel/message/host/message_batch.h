// SPDX-License-Identifier: Apache-2.0
//
// MessageBatch: the operation of a send, a receive, a batch or a group, to which its Transfer
// refers: some messages on some lanes, which end one by one and count as one. Thread-safe once
// posted.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "peerlane/channel/message/host/message_format.h"
#include "peerlane/channel/operation/operation.h"
#include "peerlane/core/metrics.h"
#include "peerlane/core/mutex.h"
#include "peerlane/memory/region_table.h"

namespace peerlane {

class LaneEnd;

// One message, seen by one side.
struct MessageItem {
  std::byte* address = nullptr;
  uint64_t bytes = 0;
  // The region that the memory belongs to, held by the batch; null: none (eager messages, and
  // receives into which only this side writes).
  const RegionRecord* region = nullptr;
  MessageKind kind = MessageKind::kEager;  // sends: the protocol
  bool mayStage = false;                   // sends: the ring may replace it
  Part part{};

  // Behind a file that another process may cut. Memory that is not registered is taken for memory
  // of no file.
  bool mayBeCut() const {
    return region != nullptr && region->memory.device.kind == DeviceKind::kHost &&
           region->memory.mayBeCut;
  }
};

class MessageBatch final : public Operation {
 public:
  // `owner` keeps the lanes alive.
  MessageBatch(std::shared_ptr<void> owner, Progress& progress, Metrics& metrics)
      : Operation(progress), owner_(std::move(owner)), metrics_(metrics) {}
  ~MessageBatch() override;

  // --- Before it is posted, one thread ---
  // Keeps the region from being taken back until the batch has ended. kClosed: its owner takes it
  // back already.
  Status hold(const std::shared_ptr<RegionRecord>& region);
  size_t add(const MessageItem& item) {
    items_.push_back(item);
    left_.store(items_.size(), std::memory_order_relaxed);
    return items_.size() - 1;
  }
  void useLane(LaneEnd& lane);
  // Nothing begins before runToEnd().
  void holdBack() { held_.store(true, std::memory_order_relaxed); }

  // --- Lanes ---
  const MessageItem& item(size_t index) const { return items_[index]; }
  size_t size() const { return items_.size(); }
  // It shall end as soon as it can: its user says so, or memory of it was taken back.
  bool cancelled() const { return Operation::cancelled() || isRevoked(); }
  // The memory of one of its regions was taken back by its provider, or freed. For those that have
  // an item of it that has not ended.
  bool isRevoked() const;
  bool held() const { return held_.load(std::memory_order_acquire); }
  // One item has ended, and nothing touches its memory any more. The lanes call it once per item.
  // kCancelled is told as kRevoked where it was for that.
  void itemEnded(const Status& status);

  // --- Operation ---
  Status wait(std::chrono::nanoseconds timeout) override;
  void cancel() override;
  void runToEnd() override;
  std::string describe() const override;

 private:
  bool advanceLanes();

  const std::shared_ptr<void> owner_;
  Metrics& metrics_;
  std::vector<MessageItem> items_;
  std::vector<std::shared_ptr<RegionRecord>> regions_;
  std::vector<LaneEnd*> lanes_;
  std::atomic<size_t> left_{0};    // items not ended
  std::atomic<bool> held_{false};  // lowered with release by runToEnd(); acquire by the lanes
  Mutex failureMutex_;
  Status failure_ PEERLANE_GUARDED_BY(failureMutex_);  // of the first item that failed
};

}  // namespace peerlane
