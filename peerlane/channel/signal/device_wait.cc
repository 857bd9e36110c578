// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/signal/device_wait.h"

#include <utility>

#include "peerlane/channel/transfer/captured_post.h"
#include "peerlane/program/device/poison.h"
#include "peerlane/program/words/counter_line.h"

namespace peerlane {

Result<Transfer> DeviceWait::begin(const std::shared_ptr<PeerCore>& peer, DeviceStream stream,
                                   uint64_t offset, uint64_t value, std::string what,
                                   std::chrono::nanoseconds timeout, uint64_t perReplay) {
  PEERLANE_RETURN_IF_ERROR(peer->usable());
  PEERLANE_ASSIGN(DeviceExecutor* const executor, peer->executorOf(stream));
  if (executor->isCapturing(stream))
    return CapturedPost::captureWait(peer, *executor, stream, offset, value, perReplay, what);
  PEERLANE_ASSIGN(std::byte* const slab, peer->windows().own());
  auto wait = std::make_shared<DeviceWait>(peer, *executor, offset, value, std::move(what));
  PEERLANE_ASSIGN(wait->abort_, executor->borrowWord());
  wait->deadline_ = Progress::deadlineIn(timeout);
  auto posted = executor->waitCounter(stream, slab + offset, value, wait->abort_);
  if (!posted.isOk()) {
    executor->returnWord(std::exchange(wait->abort_, nullptr));
    return posted.status();
  }
  wait->post_ = *posted;
  wait->progress_.expectDeviceStores();
  wait->progress_.addQuietly(wait);
  return Transfer(std::move(wait));
}

DeviceWait::~DeviceWait() {
  // Dropped by an engine that stopped: the stream must not hang for it.
  if (abort_ == nullptr || peer_->forked()) return;
  abortWaits(*abort_, &peer_->metrics().poisonings());
  executor_.returnWord(abort_, post_);
  executor_.waitEnded();
  progress_.deviceStoresSeen();
}

void DeviceWait::release(Status why) {
  released_ = std::move(why);
  abortWaits(*abort_, &peer_->metrics().poisonings());
}

// The stream will see it by itself, though it may not have come to look yet.
bool DeviceWait::reached() const {
  return CounterLine::value(peer_->slab() + offset_) >= value_;
}

Task::Turn DeviceWait::turn() {
  if (post_.ended()) {
    executor_.returnWord(std::exchange(abort_, nullptr));
    executor_.waitEnded();
    progress_.deviceStoresSeen();
    markEnded(released_);
    return Turn::kFinished;
  }
  if (!released_.isOk()) return Turn::kIdle;
  if (cancelled())
    release(Status(Code::kCancelled, "the wait was cancelled"));
  else if (peer_->failureCode() != Code::kOk && !reached())
    release(peer_->failure());
  else if (Progress::Clock::now() >= deadline_)
    release(Status(Code::kTimeout, "waited " + durationInWords(Progress::Clock::now() - since_) +
                                       " for " + what_ + " of " + peer_->name() + "; it is " +
                                       std::to_string(CounterLine::value(peer_->slab() + offset_)) +
                                       "; the stream goes on"));
  return released_.isOk() ? Turn::kIdle : Turn::kMoved;
}

std::string DeviceWait::describe() const {
  if (post_.ended()) return {};
  const auto age =
      std::chrono::duration_cast<std::chrono::milliseconds>(Progress::Clock::now() - since_);
  return "stream of " + executor_.device().toString() + " waits for " + what_ + " of peer " +
         std::to_string(peer_->number()) + ", since " + std::to_string(age.count()) + " ms";
}

}  // namespace peerlane
