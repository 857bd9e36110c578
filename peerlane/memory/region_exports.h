// SPDX-License-Identifier: Apache-2.0
//
// RegionExports: what links have made of one region so that peers can reach it (a key, a
// registration with a device): once for all connections over the same wire, not once per
// connection. Owned by the region's record. Thread-safe; no lock is held while an export is made,
// revoked or ended, but calls that end exports and calls that make them wait for each other where
// one would otherwise return too early.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "peerlane/core/mutex.h"
#include "peerlane/core/status.h"

namespace peerlane {

// A key or registration that a link made of one region. Its end takes that back.
class RegionExport {
 public:
  virtual ~RegionExport() = default;
  // The provider of the memory takes it back: after OK nothing reaches the memory by this export,
  // though its end is still to come. Called at most once with success, on the thread of the
  // provider, or, for memory that was freed, on the progress thread: it waits for no other thread
  // of the library. The peers have let go of the region before, or do not answer. Errors:
  // kUnavailable (pinned for life: the export ends with the region), kTimeout.
  virtual Status revoke(std::chrono::nanoseconds timeout) = 0;
};

class RegionExports {
 public:
  using Made = std::shared_ptr<RegionExport>;
  using Make = std::function<Result<Made>()>;

  // The export for `domain`, the address of a thing that all links have in common which can use one
  // export. The first call for a domain calls `make`; others for that domain wait meanwhile, so
  // `make` must not ask for it again. An error of `make` is returned, and not kept. Errors: kClosed
  // (end() was called), kRevoked (revoke() was).
  Result<Made> of(const void* domain, const Make& make);
  // Some device or link has, or is getting, one.
  bool hasAny();
  // `domain` ends. Waits for other threads that end or revoke exports: they may use the domain.
  void drop(const void* domain);
  // No export is made from now on. True when no other thread makes, revokes or ends one: then end()
  // waits for nobody.
  bool close();
  // The region ends: no peer reaches it any more. Waits for other threads that make, revoke or end
  // an export: they may ask the provider of the memory, which is told of the end next.
  void end();
  // The memory is taken back: no export is made from now on. Waits for other threads that make,
  // revoke or end one, and revokes all. OK: nothing reaches the memory by any of them. May be
  // called again after an error.
  Status revoke(std::chrono::nanoseconds timeout);

 private:
  struct Entry {
    Made made;                // null: being made
    std::thread::id maker{};  // by this thread
    bool isRevoked = false;
  };
  Status whyOver() const PEERLANE_REQUIRES(mutex_);
  bool othersMake() const PEERLANE_REQUIRES(mutex_);
  bool othersEnd() const PEERLANE_REQUIRES(mutex_);
  // Ends what the caller took out, without the lock.
  void endWithoutLock(std::vector<Made> dropped);

  mutable Mutex mutex_;
  Condition changed_;
  std::map<const void*, Entry> entries_ PEERLANE_GUARDED_BY(mutex_);
  std::vector<std::thread::id> enders_ PEERLANE_GUARDED_BY(mutex_);  // threads that end or revoke
  bool isOver_ PEERLANE_GUARDED_BY(mutex_) = false;
  bool isRevoked_ PEERLANE_GUARDED_BY(mutex_) = false;
};

}  // namespace peerlane
