// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/trigger/trigger_health.h"

#include <algorithm>

namespace peerlane {

bool TriggerHealth::haveArrived(std::span<const TriggerArrival> arrivals) const {
  return std::ranges::all_of(arrivals, [&](const TriggerArrival& arrival) {
    return loadWord(peer_.slab() + arrival.offset, Width::k64) >= arrival.value;
  });
}

void TriggerHealth::fail(const Status& why) {
  {
    const MutexLock lock(mutex_);
    if (!hasFailed()) failure_ = why;
  }
  mirror_.fail(why.code());
}

Status TriggerHealth::inWords(Code code) const {
  Status gone = peer_.failure();
  if (!gone.isOk()) return gone;
  return Status(code, "an operation of a triggered queue to " + peer_.name() +
                          " failed; the bytes of what was launched with it are undefined");
}

void TriggerHealth::explain(std::span<const PostedWork> works) {
  const MutexLock lock(mutex_);
  if (!failure_.isOk()) return;
  const auto code = static_cast<Code>(words_.status.load(std::memory_order_acquire));
  if (code == Code::kRevoked || code == Code::kPermissionDenied)
    for (const PostedWork& work : works)
      if (failure_ = work.whyRefused(code); !failure_.isOk()) return;
  failure_ = inWords(code);
}

Status TriggerHealth::status() const {
  const auto code = static_cast<Code>(words_.status.load(std::memory_order_acquire));
  if (code == Code::kOk) return Status::ok();
  const MutexLock lock(mutex_);
  return failure_.isOk() ? inWords(code) : failure_;
}

}  // namespace peerlane
