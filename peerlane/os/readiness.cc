// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/readiness.h"

#include <utility>

namespace peerlane {

Result<int> Readiness::fd() {
  if (!event_) {
    PEERLANE_ASSIGN(event_, makeEventFd());
    if (isReady_) signalEventFd(event_.get());
  }
  return event_.get();
}

void Readiness::set(bool ready) {
  if (std::exchange(isReady_, ready) == ready || !event_) return;
  if (ready)
    signalEventFd(event_.get());
  else
    drainEventFd(event_.get());
}

}  // namespace peerlane
