// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/staging/peer_staging.h"

#include <utility>

#include "peerlane/core/log.h"

namespace peerlane {

std::shared_ptr<PeerStaging> PeerStaging::of(PeerCore& peer) {
  return peer.attachments().peerStaging.getOr(
      [&] { return std::make_shared<PeerStaging>(peer.config().stagingBytes); });
}

Result<std::shared_ptr<StagingMemory>> PeerStaging::memory(const PeerCore& peer) {
  const MutexLock lock(mutex_);
  if (!memory_) {
    PEERLANE_ASSIGN(memory_, peer.staging().makeMemory(bytes()));
  }
  return memory_;
}

std::optional<Result<RegionReference>> PeerStaging::remote(PeerCore& peer) {
  const MutexLock lock(mutex_);
  if (!std::exchange(asked_, true)) {
    const auto own = of(peer);
    peer.staging().askForMemory(bytes(), [weak = std::weak_ptr(own), &progress = peer.progress()](
                                             Result<RegionReference> answer) {
      const auto self = weak.lock();
      if (!self) return;
      {
        const MutexLock storing(self->mutex_);
        self->remote_ = std::move(answer);
      }
      progress.nudge();
    });
  }
  return remote_;
}

void PeerStaging::keep(std::shared_ptr<ImportedRegion> remote) {
  const MutexLock lock(mutex_);
  kept_ = std::move(remote);
}

void PeerStaging::logOnce(const PeerCore& peer, const std::string& why) {
  const MutexLock lock(mutex_);
  if (!logged_.insert(why).second) return;
  PEERLANE_LOG_WARN("peer {}: transfers are staged through host memory, because {}", peer.number(),
                    why);
}

}  // namespace peerlane
