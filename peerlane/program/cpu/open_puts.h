// SPDX-License-Identifier: Apache-2.0
//
// OpenPuts: the puts of a run that an agent has not answered, and how a word that announces their
// bytes depends on them. A put may fail because its owner refuses it, or because this side's memory
// is gone when the agent reads it. External synchronization required.
#pragma once

#include <utility>

#include "peerlane/memory/remote_memory.h"

namespace peerlane::cpu {

class OpenPuts {
 public:
  void clear() { *this = {}; }
  // One was posted. `isOurs`: it reads memory of the library only and writes no other region. Else
  // it may fail though `to` would not be refused.
  void add(const RemoteMemory* to, bool isOurs) {
    static const RemoteMemory several;  // equal to no region
    lastIsOnly_ = to_ == nullptr;
    earlierMayBeGone_ |= std::exchange(lastMayBeGone_, !isOurs);
    to_ = to_ == nullptr || to_ == to ? to : &several;
  }
  // An entry of another kind was posted.
  void addOther() {
    lastIsOnly_ = false;
    earlierMayBeGone_ |= std::exchange(lastMayBeGone_, false);
  }

  enum class Before : uint8_t {
    kAny,      // the word may go at once: where the owner refuses one it refuses the other
    kLast,     // the same, tied to the last entry (MailboxEntry::onlyAfterPrevious)
    kAnswers,  // all answers come first
  };
  // Of a word that is released after them, in `word`.
  Before before(const RemoteMemory* word) const {
    if (to_ == nullptr) return Before::kAny;
    const bool isSameRegion = to_ == word;
    if (isSameRegion && !lastMayBeGone_ && !earlierMayBeGone_) return Before::kAny;
    const bool lastDecides = isSameRegion ? lastMayBeGone_ && !earlierMayBeGone_ : lastIsOnly_;
    const bool canTie = word->refusesInOrder && to_->agent == word->agent;
    return lastDecides && canTie ? Before::kLast : Before::kAnswers;
  }

 private:
  const RemoteMemory* to_ = nullptr;  // the region that they write
  bool lastIsOnly_ = false;           // there is one, and no entry after it
  bool lastMayBeGone_ = false;        // the last entry is such a put
  bool earlierMayBeGone_ = false;     // one before it was
};

}  // namespace peerlane::cpu
