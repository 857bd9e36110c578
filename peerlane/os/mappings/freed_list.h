// SPDX-License-Identifier: Apache-2.0
//
// FreedList: what a FreeWatch has told of, until somebody takes it. So who looks for freed memory
// walks over that alone, and not over all that is watched. Thread-safe.
#pragma once

#include <atomic>
#include <set>
#include <utility>

#include "peerlane/core/counted_list.h"
#include "peerlane/core/mutex.h"
#include "peerlane/os/fd.h"

namespace peerlane {

class FreedList {
 public:
  // The place of one watched range, part of what owns the range.
  class Link {
   private:
    friend class FreedList;
    Link* next_ = nullptr;
  };

  // `bell`, an eventfd, is rung with each link that is added.
  explicit FreedList(Fd bell) : bell_(std::move(bell)) {}

  int bell() const { return bell_.get(); }
  // By FreeWatch::Listener::freed(), once for a range: takes no lock and no memory.
  void add(Link& link) noexcept;
  // The link is no longer in the list. Requires: no add() of it is to come.
  void remove(Link& link);
  // Tells `visit(Link&)` of each link that was added since the last call and is still there. The
  // list is locked meanwhile, so that what is visited is not removed.
  template <typename Visit>
  void take(const Visit& visit) {
    const MutexLock lock(mutex_);
    collect();
    Steps::add(known_.size());
    for (Link* const link : known_) visit(*link);
    known_.clear();
  }

 private:
  void collect() PEERLANE_REQUIRES(mutex_);

  const Fd bell_;
  std::atomic<Link*> added_{nullptr};  // linked by Link::next_
  Mutex mutex_;
  std::set<Link*> known_ PEERLANE_GUARDED_BY(mutex_);
};

}  // namespace peerlane
