// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/operation/end_calls.h"

#include <utility>

namespace peerlane {

void EndCalls::add(Function function) {
  {
    const MutexLock lock(mutex_);
    given_.push_back(std::move(function));
    if (!hasEnded_ || isCalling_) return;
    isCalling_ = true;
  }
  callAll();
}

void EndCalls::end(Progress& progress, const Status& status) {
  {
    const MutexLock lock(mutex_);
    status_ = status;
    hasEnded_ = true;
    if (given_.empty()) return;
    isCalling_ = isPosted_ = true;
  }
  // The last copy goes when it was called, or dropped uncalled.
  const std::shared_ptr<EndCalls> posted(
      this, [self = shared_from_this()](EndCalls* calls) { calls->dropIfUncalled(); });
  progress.post([posted] { posted->callAll(); });
}

// Requires: isCalling_, for this thread. What a function gives is called after that function.
void EndCalls::callAll() {
  std::vector<Function> now;
  for (;;) {
    now.clear();
    {
      const MutexLock lock(mutex_);
      isPosted_ = false;
      now.swap(given_);
      isCalling_ = !now.empty();
    }
    if (now.empty()) return;
    for (const Function& function : now) function(status_);
  }
}

// Those that are given from now on are called at once again.
void EndCalls::dropIfUncalled() {
  std::vector<Function> dropped;  // ends under no lock
  const MutexLock lock(mutex_);
  if (!std::exchange(isPosted_, false)) return;
  dropped.swap(given_);
  isCalling_ = false;
}

}  // namespace peerlane
