// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/staging/staging_lane.h"

#include <utility>

#include "peerlane/core/log.h"

namespace peerlane {

std::shared_ptr<StagingLane> StagingLane::of(PeerCore& peer) {
  return peer.attachments().stagingLane.getOr(
      [&] { return std::make_shared<StagingLane>(peer.config().stagingBytes); });
}

Result<std::shared_ptr<StagingMemory>> StagingLane::memory(const PeerCore& peer) {
  const MutexLock lock(mutex_);
  if (!memory_) {
    PEERLANE_ASSIGN(memory_, peer.staging().makeMemory(bytes()));
  }
  return memory_;
}

std::optional<Result<RegionReference>> StagingLane::remote(PeerCore& peer) {
  const MutexLock lock(mutex_);
  if (!std::exchange(asked_, true)) {
    const auto lane = of(peer);
    peer.staging().askForMemory(bytes(), [weak = std::weak_ptr(lane), &progress = peer.progress()](
                                             Result<RegionReference> answer) {
      const auto self = weak.lock();
      if (!self) return;
      {
        const MutexLock told(self->mutex_);
        self->remote_ = std::move(answer);
      }
      progress.nudge();
    });
  }
  return remote_;
}

void StagingLane::keep(std::shared_ptr<ImportedRegion> remote) {
  const MutexLock lock(mutex_);
  kept_ = std::move(remote);
}

void StagingLane::tell(const PeerCore& peer, const std::string& why) {
  const MutexLock lock(mutex_);
  if (!told_.insert(why).second) return;
  PEERLANE_LOG_WARN("peer {}: transfers are staged through host memory, because {}", peer.number(),
                    why);
}

}  // namespace peerlane
