// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/context/freed_regions.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "peerlane/core/log.h"

namespace peerlane {
namespace {

// Between looks whether transfers that found the pages before have ended: they tell nobody. Some
// take as long as a receive waits.
constexpr std::chrono::milliseconds kFirstWait{1}, kLongestWait{128};

}  // namespace

Status FreedRegions::hear(const RegionRecord& record) {
  if (record.memory.device.kind != DeviceKind::kHost) return Status::ok();
  std::shared_ptr<const Fd> bell;
  bool isNew = false;
  {
    const MutexLock lock(mutex_);
    if (!bell_) {
      PEERLANE_ASSIGN(Fd made, makeEventFd());
      bell_ = std::make_shared<const Fd>(std::move(made));
      isNew = true;
    }
    bell = bell_;
  }
  record.frees.setBell(bell);
  if (isNew) progress_.post([this, alive = owner_.lock(), bell] { begin(bell); });
  return Status::ok();
}

// Progress thread.
void FreedRegions::begin(const std::shared_ptr<const Fd>& bell) {
  if (isOver_) return;
  auto made = progress_.loop().watch(bell->get(), true, false, [this, bell] {
    drainEventFd(bell->get());
    nextLook_ = kFirstWait;
    letGo();
  });
  if (made.isOk())
    watch_ = std::move(*made);
  else
    PEERLANE_LOG_ERROR("peers are told of freed memory only when its place is used again: {}",
                       made.status().toString());
}

// Progress thread. Transfers that found the pages of a local region use other parts of it, or are
// lost; the region stays for these.
void FreedRegions::letGo() {
  bool isUsed = false;
  for (const Record& freed : regions_.freed()) {
    if (freed->access != Access::kLocal)
      revoke_(freed);
    else if (!freed->gate.drained() || !freed->exports.revoke({}).isOk())
      isUsed = true;
    else
      freed->frees.end();
  }
  again_ = isUsed ? progress_.loop().after(nextLook_, [this] { letGo(); }) : Timer();
  nextLook_ = std::min(2 * nextLook_, kLongestWait);
}

void FreedRegions::stop() {
  isOver_ = true;
  again_ = {};
  watch_ = {};
}

}  // namespace peerlane
