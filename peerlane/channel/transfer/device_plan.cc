// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/transfer/device_plan.h"

#include <utility>

#include "peerlane/channel/transfer/captured_post.h"
#include "peerlane/channel/transfer/device_transfer.h"

namespace peerlane {
Result<std::shared_ptr<DevicePlan>> DevicePlan::create(const std::shared_ptr<PeerCore>& peer,
                                                       DeviceExecutor& executor,
                                                       BlockProgram blocks,
                                                       const PlanOptions& options) {
  PEERLANE_RETURN_IF_ERROR(blocks.checkIdentity());
  auto plan = std::make_shared<DevicePlan>(peer, executor, std::move(blocks));
  PEERLANE_RETURN_IF_ERROR(plan->prepare(options));
  return plan;
}

DevicePlan::~DevicePlan() {
  if (peer_->forked()) return;
  if (active_) progress_.deviceStoresSeen();  // dropped by an engine that stopped
}

Status DevicePlan::prepare(const PlanOptions& options) {
  if (options.signal) {
    if (blocks_.direction() == Direction::kGet)
      return Status(Code::kInvalidArgument,
                    "a get cannot carry a signal: the peer's memory is only read");
    Notify notify;
    notify.signal = options.signal;
    notify.signalAdd = options.signalAdd;
    PEERLANE_ASSIGN(notify_, ownNotify(notify));
  }
  const auto deadline = Progress::deadlineIn(options.timeout);
  (void)blocks_.imported(*peer_);  // asks for all at once, so that not each waits for an answer
  for (const RemoteRegion& remote : blocks_.remotes())
    PEERLANE_RETURN_IF_ERROR(remote.prepare(deadline - Progress::Clock::now()));
  PEERLANE_RETURN_IF_ERROR(blocks_.enter());
  const Status pinned = blocks_.pin(executor_);
  blocks_.leave();
  PEERLANE_RETURN_IF_ERROR(pinned);
  std::byte* window = nullptr;
  if (notify_.signal) {
    PEERLANE_ASSIGN(window, peer_->windows().peers());
  }
  Program program;
  Binding binding;
  PEERLANE_RETURN_IF_ERROR(
      blocks_.lower(*peer_, notify_, program, binding, window, executor_.device()));
  PEERLANE_ASSIGN(
      program_,
      executor_.prepare(program, binding,
                        {.engine = options.engine, .ctas = options.ctas, .repeated = true}));
  if (isIndexed()) indexCheck_ = IndexCheck(blocks_.layout());
  PEERLANE_RETURN_IF_ERROR(gates_.enroll(blocks_, notify_.signal.has_value()));
  bytesCounter_ = &peer_->bytes(peer_->links().mapsDevices(), kCudaEngine,
                                blocks_.direction() == Direction::kPut ? "put" : "get");
  return Status::ok();
}

Result<Transfer> DevicePlan::enqueue(DeviceStream stream, const DeviceIndices& indices) {
  PEERLANE_RETURN_IF_ERROR(blocks_.checkIdentity());
  if (stream && executor_.isCapturing(stream))
    return CapturedPost::capturePlan(peer_, executor_, shared_from_this(), blocks_,
                                     notify_.signal.has_value(), *program_, stream, indices);
  const MutexLock posting(postingMutex_);
  {
    const MutexLock lock(mutex_);
    PEERLANE_RETURN_IF_ERROR(broken_);
    if (posted_ - seen_ == kMostPosts)
      return Status(Code::kTryAgain,
                    std::to_string(kMostPosts) + " posts of this plan are under way");
    // The flag stays up while any post is under way.
    if (!gates_.raise()) {
      if (posted_ == seen_) gates_.lower();
      return gates_.refusal();
    }
    ring_[++posted_ % kMostPosts] = {};  // to come: turns wait for it
  }
  auto told = PlanPost::make(peer_);
  auto posted = executor_.post(*program_, stream, indices);
  const MutexLock lock(mutex_);
  if (!posted.isOk()) {
    if (--posted_ == seen_ && !active_) gates_.lower();
    return posted.status();
  }
  const uint64_t bytes = program_->bytes() * (indices.count == 0 ? 1 : indices.count);
  bytesUnderWay_ += bytes;
  // Those before it end first.
  told->spinFirst(spinTimeFor(bytesUnderWay_));
  ring_[posted_ % kMostPosts] = {*posted, told, bytes};
  if (!std::exchange(active_, true)) {
    peer_->pendingOperations().fetch_add(1, std::memory_order_relaxed);
    progress_.expectDeviceStores();
    progress_.addQuietly(shared_from_this());
  }
  return Transfer(std::move(told));
}

Result<Transfer> DevicePlan::post(DeviceStream stream) {
  if (isIndexed())
    return Status(Code::kInvalidArgument, "an indexed plan is posted with block numbers");
  return enqueue(stream, {});
}

Result<Transfer> DevicePlan::post(std::span<const uint32_t> local, std::span<const uint32_t> remote,
                                  DeviceStream stream) {
  if (!isIndexed())
    return Status(Code::kInvalidArgument,
                  "this plan has fixed blocks; it is posted without block numbers");
  const bool isPut = blocks_.direction() == Direction::kPut;
  const auto to = isPut ? remote : local;
  const auto from = isPut ? local : remote;
  PEERLANE_RETURN_IF_ERROR(indexCheck_.counts(local.size(), remote.size()));
  PEERLANE_RETURN_IF_ERROR(indexCheck_.check(to, from));
  return enqueue(stream, {.to = to.data(), .from = from.data(), .count = to.size()});
}

Result<Transfer> DevicePlan::post(const DeviceIndexList& indices, DeviceStream stream) {
  if (!isIndexed())
    return Status(Code::kInvalidArgument,
                  "this plan has fixed blocks; it is posted without block numbers");
  PEERLANE_RETURN_IF_ERROR(indexCheck_.counts(indices.local == nullptr ? 0 : indices.count,
                                              indices.remote == nullptr ? 0 : indices.count));
  const bool isPut = blocks_.direction() == Direction::kPut;
  return enqueue(stream, {.to = isPut ? indices.remote : indices.local,
                          .from = isPut ? indices.local : indices.remote,
                          .count = indices.count,
                          .onDevice = true});
}

// A cancel leaves nothing out: the stream has done all of it, and added to the signal.
Status DevicePlan::endOf(const Posted& posted) const {
  PEERLANE_RETURN_IF_ERROR(posted.post.status());
  PEERLANE_RETURN_IF_ERROR(peer_->failure());
  return gates_.whyRevoked();
}

Task::Turn DevicePlan::turn() {
  bool moved = false;
  for (;;) {
    Posted ended;
    Status status;
    {
      const MutexLock lock(mutex_);
      if (seen_ == posted_) {
        gates_.lower();
        active_ = false;
        progress_.deviceStoresSeen();
        peer_->pendingOperations().fetch_sub(1, std::memory_order_release);
        return Turn::kFinished;
      }
      Posted& next = ring_[(seen_ + 1) % kMostPosts];
      if (!next.told) return moved ? Turn::kMoved : Turn::kIdle;
      if (!next.post.ended()) {
        if (broken_.isOk()) broken_ = health_.look(executor_);
        if (broken_.isOk()) return moved ? Turn::kMoved : Turn::kIdle;
      }
      ended = std::exchange(next, {});
      status = broken_.isOk() ? endOf(ended) : broken_;
      bytesUnderWay_ -= ended.bytes;
      ++seen_;
    }
    if (status.isOk()) bytesCounter_->add(ended.bytes);
    peer_->metrics().ended(status.code()).add();
    ended.told->markEnded(status);
    moved = true;
  }
}

std::string DevicePlan::describe() const {
  const MutexLock lock(mutex_);
  if (seen_ == posted_) return {};
  return "plan to peer " + std::to_string(peer_->number()) + " on " +
         executor_.device().toString() + ": " + std::to_string(posted_ - seen_) +
         " posts on their streams";
}

}  // namespace peerlane
