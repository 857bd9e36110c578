// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/peer/revoked_imports.h"

#include <chrono>
#include <string>
#include <utility>

#include "peerlane/core/limits.h"
#include "peerlane/core/log.h"

namespace peerlane {

Status RevokedImports::handle(control::Revoke& message) {
  if (!imports_.isOpen()) return Status(Code::kCorrupt, "a revocation before the link is made");
  auto regions = imports_.all(message.allocation, message.generation);
  if (regions.empty() && !imports_.isDetaching(message.allocation, message.generation))
    return env_.connection->send(control::RevokeDone{message.request, Code::kOk});
  if (!regions.empty() && message.freed)
    PEERLANE_LOG_INFO(
        "peer {}: the memory of its region {} was taken back, or freed, before the "
        "region was unregistered",
        env_.number, message.allocation);
  for (const auto& region : regions)
    region->gate.close(message.freed ? Code::kRevoked : Code::kClosed);
  {
    const MutexLock lock(mutex_);
    if (revoked_.size() >= limits::kRevocations)
      return Status(Code::kCorrupt, "the peer takes back more than " +
                                        std::to_string(limits::kRevocations) +
                                        " regions at once while transfers of this side use them");
    revoked_.push_back(
        {message.request, message.allocation, message.generation, std::move(regions)});
    count_.store(static_cast<uint32_t>(revoked_.size()), std::memory_order_relaxed);
  }
  watch();
  return Status::ok();
}

void RevokedImports::watch() {
  turn();
  if (count_.load(std::memory_order_relaxed) == 0) return;
  timer_ = env_.around.progress.loop().after(std::chrono::milliseconds(1), [this] { watch(); });
}

// In one process it is the owner's memory itself that was pinned; and pool memory has to be freed
// here before its owner frees it.
bool RevokedImports::isLetGo(const Revoked& revoked) const {
  bool isLetGo = true;
  for (const auto& region : revoked.regions) isLetGo = ImportedRegion::letGo(region) && isLetGo;
  if (!isLetGo) return false;
  return !imports_.isDetaching(revoked.allocation, revoked.generation);
}

bool RevokedImports::confirm() {
  const MutexLock lock(mutex_);
  const size_t before = revoked_.size();
  std::erase_if(revoked_, [this](const Revoked& revoked) {
    if (!isLetGo(revoked)) return false;
    env_.post([this, request = revoked.request] {
      (void)env_.connection->sendIfOpen(control::RevokeDone{request, Code::kOk});
    });
    return true;
  });
  count_.store(static_cast<uint32_t>(revoked_.size()), std::memory_order_relaxed);
  return revoked_.size() != before;
}

}  // namespace peerlane
