// SPDX-License-Identifier: Apache-2.0
//
// RegionExports: what links have made of one region so that peers can reach it (a key, a
// registration with a device): once for all connections over the same wire, not once per
// connection. Owned by the region's record. Thread-safe.
#pragma once

#include <functional>
#include <map>
#include <memory>

#include "peerlane/core/mutex.h"
#include "peerlane/core/status.h"

namespace peerlane {

// A key or registration that a link made of one region. Its end takes that back.
class RegionExport {
 public:
  virtual ~RegionExport() = default;
};

class RegionExports {
 public:
  using Make = std::function<Result<std::shared_ptr<RegionExport>>()>;

  // The export for `domain`, the address of a thing that all links have in common which can use one
  // export. The first call for a domain calls `make`, under a lock: it must not ask for an export
  // of the same region. An error of `make` is returned, and not kept. Errors: kClosed (end() was
  // called).
  Result<std::shared_ptr<RegionExport>> of(const void* domain, const Make& make) {
    const MutexLock lock(mutex_);
    if (const auto found = made_.find(domain); found != made_.end()) return found->second;
    if (isOver_) return Status(Code::kClosed, "the region is being unregistered");
    PEERLANE_ASSIGN(auto made, make());
    return made_.emplace(domain, std::move(made)).first->second;
  }
  // `domain` ends.
  void drop(const void* domain) {
    std::shared_ptr<RegionExport> dropped;  // ends after the lock
    const MutexLock lock(mutex_);
    if (const auto found = made_.find(domain); found != made_.end()) {
      dropped = std::move(found->second);
      made_.erase(found);
    }
  }
  // The region ends: no peer reaches it any more.
  void end() {
    std::map<const void*, std::shared_ptr<RegionExport>> dropped;
    const MutexLock lock(mutex_);
    isOver_ = true;
    dropped.swap(made_);
  }

 private:
  Mutex mutex_;
  std::map<const void*, std::shared_ptr<RegionExport>> made_ PEERLANE_GUARDED_BY(mutex_);
  bool isOver_ PEERLANE_GUARDED_BY(mutex_) = false;
};

}  // namespace peerlane
