// SPDX-License-Identifier: Apache-2.0
//
// StagingLane: the staging memory between this side and one peer, this side's piece and the peer's,
// and whose turn it is. A transfer has all of it until it has ended: those that wait are served in
// the order in which their streams come to them, so that none waits for one that cannot begin.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "peerlane/memory/staging_memory.h"
#include "peerlane/session/peer_core.h"

namespace peerlane {

class StagingLane final : public Task {
 public:
  // So many groups of bytes are under way at once.
  static constexpr uint32_t kSlots = 4;

  // The lane of a peer; lives as long as that. Turned with it.
  static std::shared_ptr<StagingLane> of(PeerCore& peer);
  explicit StagingLane(uint64_t bytes) : slotBytes_(bytes / kSlots / kPage * kPage) {}

  Turn turn() override { return Turn::kIdle; }

  uint64_t slotBytes() const { return slotBytes_; }
  // This side's, made when first asked for.
  Result<std::shared_ptr<StagingMemory>> memory(const PeerCore& peer);
  // The peer's. Nothing while its answer is awaited; the first call asks. A refusal is final.
  std::optional<Result<RegionReference>> remote(PeerCore& peer);
  // Keeps the peer's imported from now on.
  void keep(std::shared_ptr<ImportedRegion> remote);
  // Says in the log, once, why.
  void tell(const PeerCore& peer, const std::string& why);

  // By turns only. `who` is a name, nothing else.
  void enter(const void* who) { queue_.push_back(who); }
  bool isServed(const void* who) const { return !queue_.empty() && queue_.front() == who; }
  void leave(const void* who) { std::erase(queue_, who); }

 private:
  static constexpr uint64_t kPage = 4096;

  const uint64_t slotBytes_;
  std::deque<const void*> queue_;

  std::mutex mutex_;
  std::shared_ptr<StagingMemory> memory_;  // under mutex_, as all below
  bool asked_ = false;
  std::optional<Result<RegionReference>> remote_;
  std::shared_ptr<ImportedRegion> kept_;
  std::set<std::string> told_;
};

}  // namespace peerlane
