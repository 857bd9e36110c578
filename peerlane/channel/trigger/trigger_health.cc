// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/trigger/trigger_health.h"

#include <algorithm>

#include "peerlane/channel/signal/signal_watch.h"

namespace peerlane {

bool TriggerHealth::haveArrived(std::span<const TriggerArrival> arrivals) const {
  return std::ranges::all_of(arrivals, [&](const TriggerArrival& arrival) {
    return signalValue(peer_, peer_.slab() + arrival.offset) >= arrival.value;
  });
}

void TriggerHealth::fail(const Status& why) {
  {
    // A thread that sees the code waits for the words. An abort may have told the same code before.
    const MutexLock lock(mutex_);
    uint64_t code = 0;
    const bool isFirst = words_->status.compare_exchange_strong(
        code, static_cast<uint64_t>(why.code()), std::memory_order_acq_rel);
    if (isFirst || (failure_.isOk() && code == static_cast<uint64_t>(why.code()))) failure_ = why;
  }
  failAgain();
}

void TriggerHealth::failAgain() {
  if (!hasFailed()) return;
  for (std::atomic<uint64_t>* const word : {&words_->count, &words_->arrived}) {
    if (isPoison(word->load(std::memory_order_acquire))) continue;
    const uint64_t replaced = word->exchange(kPoison, std::memory_order_acq_rel);
    if (word != &words_->count || isPoison(replaced)) continue;
    // Its only trace is here now.
    uint64_t known = stored_.load(std::memory_order_relaxed);
    while (known < replaced &&
           !stored_.compare_exchange_weak(known, replaced, std::memory_order_acq_rel)) {
    }
  }
}

Status TriggerHealth::inWords(Code code) const {
  Status gone = peer_.failure();
  if (!gone.isOk()) return gone;
  return Status(code, "an operation of a triggered queue to " + peer_.name() +
                          " failed; the bytes of what was launched with it are undefined");
}

void TriggerHealth::explain(const PostedWorks& works) {
  const MutexLock lock(mutex_);
  if (!failure_.isOk()) return;
  const auto code = static_cast<Code>(words_->status.load(std::memory_order_acquire));
  if (code == Code::kRevoked || code == Code::kPermissionDenied)
    for (const auto& work : works)
      if (failure_ = work->whyRefused(code); !failure_.isOk()) return;
  failure_ = inWords(code);
}

Status TriggerHealth::status() const {
  const auto code = static_cast<Code>(words_->status.load(std::memory_order_acquire));
  if (code == Code::kOk) return Status::ok();
  const MutexLock lock(mutex_);
  return failure_.isOk() ? inWords(code) : failure_;
}

}  // namespace peerlane
