// SPDX-License-Identifier: Apache-2.0
//
// PeerStaging: the staging memory between this side and one peer (this side's part and the peer's),
// and the order in which transfers have it. One half is for transfers on users' streams, the other
// for those without. A stream that waits for its turn may hold up, in a hardware queue, the copies
// of a transfer that posts as it goes on, so it must not wait for that transfer. A transfer has all
// of its half until it has ended. Transfers that wait are served in the order in which their
// streams come to them, so that none waits for one that cannot begin.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "peerlane/core/mutex.h"
#include "peerlane/memory/staging_memory.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {

class PeerStaging {
 public:
  enum class Half : uint8_t { kOnStreams, kWithout };
  // The number of groups of bytes of a transfer that are under way at once.
  static constexpr uint32_t kSlots = 4;

  // That of a peer; it lives as long as the peer.
  static std::shared_ptr<PeerStaging> of(PeerCore& peer);
  explicit PeerStaging(uint64_t bytes) : slotBytes_(bytes / kAllSlots / kPage * kPage) {}

  uint64_t slotBytes() const { return slotBytes_; }
  // Where the bytes of a transfer's group lie, here and at the peer.
  uint64_t offsetOf(Half half, size_t group) const {
    return (static_cast<size_t>(half) * kSlots + group % kSlots) * slotBytes_;
  }
  // This side's memory, made when first asked for.
  Result<std::shared_ptr<StagingMemory>> memory(const PeerCore& peer);
  // The peer's memory. Nothing while its answer is awaited; the first call asks. A refusal is
  // final.
  std::optional<Result<RegionReference>> remote(PeerCore& peer);
  // Keeps the peer's memory imported from now on.
  void keep(std::shared_ptr<ImportedRegion> remote);
  // Logs the reason, once for each.
  void logOnce(const PeerCore& peer, const std::string& why);

  // By turns only. `who` names a transfer and is not dereferenced.
  void enter(Half half, const void* who) { queueOf(half).push_back(who); }
  bool isServed(Half half, const void* who) {
    return !queueOf(half).empty() && queueOf(half).front() == who;
  }
  void leave(Half half, const void* who) { std::erase(queueOf(half), who); }

 private:
  using Queue = std::deque<const void*>;
  static constexpr uint64_t kPage = 4096;
  static constexpr uint32_t kHalves = 2;
  static constexpr uint32_t kAllSlots = kHalves * kSlots;

  uint64_t bytes() const { return slotBytes_ * kAllSlots; }
  Queue& queueOf(Half half) { return queues_[static_cast<size_t>(half)]; }

  const uint64_t slotBytes_;
  std::array<Queue, kHalves> queues_;

  Mutex mutex_;
  std::shared_ptr<StagingMemory> memory_ PEERLANE_GUARDED_BY(mutex_);
  bool asked_ PEERLANE_GUARDED_BY(mutex_) = false;
  std::optional<Result<RegionReference>> remote_ PEERLANE_GUARDED_BY(mutex_);
  std::shared_ptr<ImportedRegion> kept_ PEERLANE_GUARDED_BY(mutex_);
  std::set<std::string> logged_ PEERLANE_GUARDED_BY(mutex_);
};

}  // namespace peerlane
