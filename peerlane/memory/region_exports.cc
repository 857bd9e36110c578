// SPDX-License-Identifier: Apache-2.0
#include "peerlane/memory/region_exports.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "peerlane/core/deadline.h"

namespace peerlane {

Status RegionExports::whyOver() const {
  if (isRevoked_) return Status(Code::kRevoked, "the provider of the region's memory took it back");
  if (isOver_) return Status(Code::kClosed, "the region is being unregistered");
  return Status::ok();
}

Result<RegionExports::Made> RegionExports::of(const void* domain, const Make& make) {
  {
    const MutexLock lock(mutex_);
    for (;;) {
      PEERLANE_RETURN_IF_ERROR(whyOver());
      const auto found = entries_.find(domain);
      if (found == entries_.end()) break;
      if (found->second.made) return found->second.made;
      changed_.wait(mutex_);
    }
    entries_[domain].maker = std::this_thread::get_id();
  }
  Result<Made> made = make();
  // What came too late goes again before anybody waits for this call no longer.
  Status over;
  {
    const MutexLock lock(mutex_);
    over = whyOver();
    if (over.isOk() && made.isOk())
      entries_[domain].made = *made;
    else if (over.isOk())
      entries_.erase(domain);
  }
  if (!over.isOk()) {
    made = over;
    const MutexLock lock(mutex_);
    entries_.erase(domain);
  }
  changed_.notifyAll();
  return made;
}

bool RegionExports::othersMake() const {
  return std::ranges::any_of(entries_, [](const auto& entry) {
    return !entry.second.made && entry.second.maker != std::this_thread::get_id();
  });
}

bool RegionExports::othersEnd() const {
  return std::ranges::any_of(
      enders_, [](std::thread::id ender) { return ender != std::this_thread::get_id(); });
}

void RegionExports::endWithoutLock(std::vector<Made> dropped) {
  dropped.clear();
  const MutexLock lock(mutex_);
  enders_.erase(std::ranges::find(enders_, std::this_thread::get_id()));
  changed_.notifyAll();
}

bool RegionExports::hasAny() {
  const MutexLock lock(mutex_);
  return !entries_.empty();
}

void RegionExports::drop(const void* domain) {
  std::vector<Made> dropped;
  {
    const MutexLock lock(mutex_);
    while (othersEnd()) changed_.wait(mutex_);
    const auto found = entries_.find(domain);
    // One that is being made belongs to the call that makes it.
    if (found == entries_.end() || !found->second.made) return;
    dropped.push_back(std::move(found->second.made));
    entries_.erase(found);
    enders_.push_back(std::this_thread::get_id());
  }
  endWithoutLock(std::move(dropped));
}

bool RegionExports::close() {
  const MutexLock lock(mutex_);
  isOver_ = true;
  return !othersMake() && !othersEnd();
}

void RegionExports::end() {
  std::vector<Made> dropped;
  {
    const MutexLock lock(mutex_);
    isOver_ = true;
    while (othersMake() || othersEnd()) changed_.wait(mutex_);
    // One that this thread makes is taken out by the call that makes it.
    std::erase_if(entries_, [&dropped](auto& entry) {
      if (!entry.second.made) return false;
      dropped.push_back(std::move(entry.second.made));
      return true;
    });
    enders_.push_back(std::this_thread::get_id());
  }
  endWithoutLock(std::move(dropped));
}

Status RegionExports::revoke(std::chrono::nanoseconds timeout) {
  const auto deadline = deadlineIn(timeout);
  std::vector<std::pair<const void*, Made>> left;
  {
    const MutexLock lock(mutex_);
    isRevoked_ = true;
    while (othersMake() || othersEnd())
      if (!changed_.waitUntil(mutex_, deadline))
        return Status(Code::kTimeout,
                      othersMake() ? "a link still makes an export of the region"
                                   : "another thread still takes exports of the region back");
    for (const auto& [domain, entry] : entries_)
      if (entry.made && !entry.isRevoked) left.emplace_back(domain, entry.made);
    enders_.push_back(std::this_thread::get_id());
  }
  Status first;
  for (const auto& [domain, made] : left) {
    const Status revoked = made->revoke(timeLeft(deadline));
    if (!revoked.isOk() && first.isOk()) first = revoked;
    if (!revoked.isOk()) continue;
    const MutexLock lock(mutex_);
    if (const auto found = entries_.find(domain); found != entries_.end())
      found->second.isRevoked = true;
  }
  left.clear();
  endWithoutLock({});
  return first;
}

}  // namespace peerlane
