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
    heard();
  });
  if (made.isOk())
    watch_ = std::move(*made);
  else
    PEERLANE_LOG_ERROR("peers are told of freed memory only when its place is used again: {}",
                       made.status().toString());
}

// Progress thread. A program that frees thousands of regions, one by one, rings as often, and each
// look is at all regions: so there is one a millisecond.
void FreedRegions::heard() {
  if (isSoon_) return;
  nextLook_ = kFirstWait;
  const auto since = Clock::now() - lastLook_;
  if (since >= kFirstWait) return letGo();
  isSoon_ = true;
  again_ = progress_.loop().after(kFirstWait - since, [this] { letGo(); });
}

// Progress thread. Transfers that found the pages of a local region use other parts of it, or are
// lost; the region stays for these.
void FreedRegions::letGo() {
  isSoon_ = false;
  lastLook_ = Clock::now();
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
