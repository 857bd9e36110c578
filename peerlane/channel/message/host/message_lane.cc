// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/message/host/message_lane.h"

#include <algorithm>
#include <utility>

namespace peerlane {
namespace {

// How often a runner looks again for others before it leaves that to the progress thread.
constexpr int kLooksForOthers = 3;

}  // namespace

BoundTarget LaneEnvironment::local(uint64_t offset, uint64_t bytes) const {
  return {.address = area->base + offset, .bytes = bytes};
}

BoundTarget LaneEnvironment::remote(uint64_t offset, uint64_t bytes) const {
  BoundTarget target = BoundTarget::ofPeer(peerArea->memory, offset, bytes);
  if (target.address != nullptr) target.waker = &peer->link().traits().waker;
  return target;
}

Status memoryGone(const std::string& message) {
  return {Code::kRevoked, message + ": its memory was unmapped, protected or cut off its file"};
}

void LaneEnd::post(const std::shared_ptr<MessageBatch>& batch, size_t first, size_t count) {
  Status refused;
  {
    const MutexLock lock(mutex_);
    refused = failure_;
    if (refused.isOk()) {
      open_.fetch_add(static_cast<uint32_t>(count), std::memory_order_acq_rel);
      incoming_.push_back({.batch = batch, .next = first, .end = first + count});
      hasIncoming_.store(true, std::memory_order_release);
    }
  }
  if (!refused.isOk()) {
    for (size_t i = 0; i < count; ++i) batch->itemEnded(refused);
    return;
  }
  if (!batch->held()) advance(kSliceBytes);
}

bool LaneEnd::advanceIfFree(uint64_t budgetBytes) {
  if (!busy()) return false;
  // What this thread has brought may have come too late for the one that holds the lane: it sees
  // the mark when it lets go, or has let go already.
  if (running_.load(std::memory_order_seq_cst)) {
    work_.fetch_add(1, std::memory_order_seq_cst);
    if (running_.load(std::memory_order_seq_cst)) return false;
  }
  return run(budgetBytes);
}

bool LaneEnd::run(uint64_t budgetBytes) {
  if (running_.exchange(true, std::memory_order_seq_cst)) return false;
  bool moved = false;
  for (int looks = 0;; ++looks) {
    const uint64_t seen = work_.load(std::memory_order_seq_cst);
    moved |= runOnce(budgetBytes);
    const bool hungry = hungry_;
    running_.store(false, std::memory_order_seq_cst);
    const bool marked = work_.load(std::memory_order_seq_cst) != seen;
    if (!marked || looks == kLooksForOthers) {
      if (hungry || marked) env_.peer->progress().nudge();
      return moved;
    }
    if (running_.exchange(true, std::memory_order_seq_cst)) return moved;
  }
}

bool LaneEnd::advance(uint64_t budgetBytes) {
  // The mark comes first: a thread that holds the lane now sees it when it lets go, and if none
  // holds it, this thread takes the lane.
  work_.fetch_add(1, std::memory_order_seq_cst);
  return run(budgetBytes);
}

void LaneEnd::take(const LaneNote& note) {
  {
    const MutexLock lock(mutex_);
    notes_.push_back(note);
    open_.fetch_add(1, std::memory_order_acq_rel);
    hasIncoming_.store(true, std::memory_order_release);
  }
  stir();
}

void LaneEnd::fail(const Status& why) {
  {
    const MutexLock lock(mutex_);
    if (!failure_.isOk()) return;
    failure_ = why;
    failing_.store(true, std::memory_order_release);
    hasIncoming_.store(true, std::memory_order_release);
  }
  stir();
}

// From inside a step: the step goes on, the next look abandons.
void LaneEnd::breakLane(const Status& why) {
  const MutexLock lock(mutex_);
  if (failure_.isOk()) failure_ = why;
  reason_ = failure_;
  failing_.store(true, std::memory_order_release);
  hasIncoming_.store(true, std::memory_order_release);
  work_.fetch_add(1, std::memory_order_seq_cst);
}

Status LaneEnd::health() const {
  if (!failing_.load(std::memory_order_acquire)) return env_.peer->usable();
  const MutexLock lock(mutex_);
  return failure_;
}

void LaneEnd::takeIncoming() {
  if (!hasIncoming_.load(std::memory_order_acquire)) return;
  std::vector<LaneNote> notes;
  {
    const MutexLock lock(mutex_);
    hasIncoming_.store(false, std::memory_order_relaxed);
    for (Posting& posting : incoming_) queue_.push_back(std::move(posting));
    incoming_.clear();
    notes.swap(notes_);
    reason_ = failure_;
  }
  for (const LaneNote& note : notes) {
    if (reason_.isOk()) handle(note);
    closed();
  }
}

// A cancelled batch ends now as far as it has not begun; its numbers stay taken.
void LaneEnd::dropCancelled() {
  if (!cancelled_.exchange(false, std::memory_order_acq_rel)) return;
  for (Posting& posting : queue_) {
    if (posting.isCancelled || !posting.batch->cancelled()) continue;
    const Status status(Code::kCancelled, "cancelled before it began");
    posting.isCancelled = true;
    for (size_t i = posting.next; i < posting.end; ++i) posting.batch->itemEnded(status);
  }
}

bool LaneEnd::next(Posted& item) {
  if (queue_.empty()) return false;
  Posting& front = queue_.front();
  const MessageItem& wanted = front.batch->item(front.next);
  item.batch = front.isCancelled ? nullptr : front.batch;
  item.index = front.next++;
  item.part = wanted.part;
  item.ordinal = ordinal_;
  if (item.part.index + 1u >= item.part.count) ++ordinal_;
  if (front.next == front.end) queue_.pop_front();
  return true;
}

void LaneEnd::endQueue() {
  while (!queue_.empty()) {
    const Posting posting = std::move(queue_.front());
    queue_.pop_front();
    closed(static_cast<uint32_t>(posting.end - posting.next));
    if (posting.isCancelled) continue;
    for (size_t i = posting.next; i < posting.end; ++i) posting.batch->itemEnded(reason_);
  }
}

// While something is under way the peer's area is in use: its owner gets it back afterwards.
bool LaneEnd::enterArea() {
  if (!inArea_) inArea_ = env_.peerArea->gate.enter();
  return inArea_ && env_.peerArea->gate.open();
}

void LaneEnd::leaveArea() {
  if (inArea_) env_.peerArea->gate.leave();
  inArea_ = false;
}

bool LaneEnd::runOnce(uint64_t budgetBytes) {
  hungry_ = false;
  takeIncoming();
  if (over()) {
    endQueue();
    return false;
  }
  if (reason_.isOk() && open_.load(std::memory_order_relaxed) != 0) {
    if (env_.peer->failureCode() != Code::kOk) {
      Status why = env_.peer->failure();
      if (!why.isOk()) breakLane(why);
    } else if (!enterArea()) {
      breakLane(Status(Code::kClosed,
                       "rank " + std::to_string(env_.rank) + " has closed its communicator"));
    }
    takeIncoming();
  }
  if (!reason_.isOk()) {
    endQueue();
    if (!abandon()) {
      // Look once more soon: another thread may have been serving an agent's entries just now. From
      // then on the agent itself says which have ended; a silent peer is waited for asleep.
      if (!std::exchange(draining_, true)) setHungry();
      return false;
    }
    leaveArea();
    over_.store(true, std::memory_order_release);
    env_.peer->progress().nudge();
    return true;
  }
  dropCancelled();
  const bool moved = step(budgetBytes);
  if (open_.load(std::memory_order_relaxed) == 0) leaveArea();
  return moved;
}

std::string LaneEnd::describe() {
  if (!busy() || running_.exchange(true, std::memory_order_seq_cst)) return {};
  std::string text = describeWindow();
  size_t waiting = 0;
  for (const Posting& posting : queue_) waiting += posting.end - posting.next;
  running_.store(false, std::memory_order_seq_cst);
  stir();  // for threads that found the lane taken
  if (waiting > 0) text += ", " + std::to_string(waiting) + " queued";
  return text;
}

}  // namespace peerlane
