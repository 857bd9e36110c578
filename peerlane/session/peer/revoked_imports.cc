// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/peer/revoked_imports.h"

#include <algorithm>
#include <string>
#include <utility>

#include "peerlane/core/counted_list.h"
#include "peerlane/core/limits.h"
#include "peerlane/core/log.h"

namespace peerlane {
namespace {

// Turns follow each other without a pause, so what they look at is bounded by time, too.
constexpr size_t kLooksOfTurn = 16;
constexpr std::chrono::microseconds kBetweenLooks{20};
// Without turns the last of all that an owner may take back at once is looked at every 16 ms.
constexpr size_t kLooksOfTimer = limits::kRevocations / 16;

}  // namespace

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
  Revoked revoked{message.request, message.allocation, message.generation, std::move(regions)};
  if (isLetGo(revoked))
    return env_.connection->send(control::RevokeDone{revoked.request, Code::kOk});
  {
    const MutexLock lock(mutex_);
    if (revoked_.size() >= limits::kRevocations)
      return Status(Code::kCorrupt, "the peer takes back more than " +
                                        std::to_string(limits::kRevocations) +
                                        " regions at once while transfers of this side use them");
    revoked_.push_back(std::move(revoked));
    count_.store(static_cast<uint32_t>(revoked_.size()), std::memory_order_relaxed);
  }
  if (!timer_.pending()) watch();
  return Status::ok();
}

void RevokedImports::watch() {
  {
    const MutexLock lock(mutex_);
    (void)look(kLooksOfTimer);
    if (revoked_.empty()) return;
  }
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

bool RevokedImports::lookInTurn() {
  const MutexLock lock(mutex_);
  const Clock::time_point now = Clock::now();
  if (now < nextLook_) return false;
  nextLook_ = now + kBetweenLooks;
  return look(kLooksOfTurn);
}

// True when something is confirmed. The progress thread says so to the owner.
bool RevokedImports::look(size_t most) {
  std::vector<uint64_t> confirmed;
  for (size_t left = std::min(most, revoked_.size()); left > 0; --left) {
    Steps::add(1);
    Revoked revoked = std::move(revoked_.front());
    revoked_.pop_front();
    if (isLetGo(revoked))
      confirmed.push_back(revoked.request);
    else
      revoked_.push_back(std::move(revoked));
  }
  count_.store(static_cast<uint32_t>(revoked_.size()), std::memory_order_relaxed);
  if (confirmed.empty()) return false;
  env_.post([this, confirmed = std::move(confirmed)] {
    const ControlConnection::Gathering answers(*env_.connection);
    for (const uint64_t request : confirmed)
      (void)env_.connection->sendIfOpen(control::RevokeDone{request, Code::kOk});
  });
  return true;
}

}  // namespace peerlane
