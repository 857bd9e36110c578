// SPDX-License-Identifier: Apache-2.0
#include "peerlane/p2p/process/root_table.h"

#include <utility>

namespace peerlane::p2p {

Result<std::string> RootTable::add(std::shared_ptr<Context> context, OptionalGpu gpu) {
  auto root = std::make_shared<Root>();
  root->gpu = gpu;
  root->context = std::move(context);
  PEERLANE_ASSIGN(root->invitation, root->context->invite());
  std::string ticket = root->invitation.ticket();
  const MutexLock lock(mutex_);
  roots_.emplace(ticket, std::move(root));
  return ticket;
}

RootTable::Claim RootTable::take(const std::string& ticket, std::shared_ptr<Root>& root) {
  const MutexLock lock(mutex_);
  const auto found = roots_.find(ticket);
  if (found == roots_.end()) return Claim::kNotHere;
  if (std::exchange(found->second->isTaken, true)) return Claim::kTakenBefore;
  root = found->second;
  return Claim::kTaken;
}

void RootTable::putBack(const std::string& ticket) {
  const MutexLock lock(mutex_);
  if (const auto found = roots_.find(ticket); found != roots_.end()) found->second->isTaken = false;
}

bool RootTable::drop(const std::string& ticket) {
  std::shared_ptr<Root> gone;  // ends after the lock
  const MutexLock lock(mutex_);
  if (auto taken = roots_.extract(ticket); !taken.empty()) gone = std::move(taken.mapped());
  return gone != nullptr;
}

bool RootTable::cancel(const std::string& ticket) {
  std::shared_ptr<Root> root;
  Peer guest;
  {
    const MutexLock lock(mutex_);
    auto taken = roots_.extract(ticket);
    if (taken.empty()) return false;
    root = std::move(taken.mapped());
    root->isCancelled = true;
    guest = std::exchange(root->guest, Peer());
  }
  root->invitation.cancel();
  if (guest) guest.close();
  return true;
}

void RootTable::setGuest(Root& root, const Peer& guest) {
  {
    const MutexLock lock(mutex_);
    if (!root.isCancelled) {
      root.guest = guest;
      return;
    }
  }
  guest.close();
}

}  // namespace peerlane::p2p
