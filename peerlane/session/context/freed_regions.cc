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
  const MutexLock lock(mutex_);
  if (!list_) {
    PEERLANE_ASSIGN(Fd bell, makeEventFd());
    list_ = std::make_shared<FreedList>(std::move(bell));
    progress_.post([this, alive = owner_.lock(), list = list_] { begin(list); });
  }
  record.frees.setList(list_);
  return Status::ok();
}

// Progress thread.
void FreedRegions::begin(const std::shared_ptr<FreedList>& list) {
  if (isOver_) return;
  auto made = progress_.loop().watch(list->bell(), true, false, [this, list] {
    drainEventFd(list->bell());
    std::vector<Record> taken;  // the last reference to one must not go while the list is locked
    list->take([&taken](FreedList::Link& link) {
      taken.push_back(static_cast<RegionFrees&>(link).record());
    });
    freed_.insert(freed_.end(), taken.begin(), taken.end());
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
  std::erase_if(freed_, [this](const std::weak_ptr<RegionRecord>& heard) {
    const Record freed = heard.lock();
    if (!freed) return true;
    if (freed->access != Access::kLocal)
      revoke_(freed);
    else if (!regions_.find(freed->allocation, freed->generation).isOk())
      return true;  // it ends already
    else if (!freed->gate.drained() || !freed->exports.revoke({}).isOk())
      return false;
    else
      freed->frees.end();
    return true;
  });
  again_ = freed_.empty() ? Timer() : progress_.loop().after(nextLook_, [this] { letGo(); });
  nextLook_ = std::min(2 * nextLook_, kLongestWait);
}

void FreedRegions::stop() {
  isOver_ = true;
  again_ = {};
  watch_ = {};
  freed_.clear();
}

}  // namespace peerlane
