// SPDX-License-Identifier: Apache-2.0
#include "integrations/nixl/remote_agent.h"

#include <algorithm>
#include <vector>

#include "peerlane/channel/transfer/transfer.h"

namespace peerlane::nixl {

Result<Peer> RemoteAgent::mail() {
  PEERLANE_ASSIGN(Context * here, way_());
  return peer(*here, {});
}

void RemoteAgent::settle(std::chrono::nanoseconds timeout) {
  std::vector<Peer> peers;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [where, peer] : peers_) peers.push_back(peer);
  }
  for (const Peer& peer : peers)
    if (peer && peer.status().isOk()) (void)flush(peer, timeout);
}

RemoteAgent::~RemoteAgent() {
  for (const auto& [where, peer] : peers_) peer.close();
}

Result<Peer> RemoteAgent::peer(Context& here, const std::string& ticket) {
  const std::string& wanted = ticket.empty() ? ticket_ : ticket;
  const std::lock_guard<std::mutex> lock(mutex_);
  Peer& peer = peers_[{&here, wanted}];
  if (!peer) {
    // Both are limits of the user's: of the back end, and of the process.
    PEERLANE_ASSIGN(peer, here.connect(wanted, std::min<std::chrono::nanoseconds>(
                                                   timeout_, here.config().connectTimeout)));
  }
  return peer;
}

Result<std::shared_ptr<RemoteMemory>> RemoteMemory::create(std::shared_ptr<RemoteAgent> agent,
                                                           uint64_t address,
                                                           const std::string& publicData) {
  PEERLANE_ASSIGN(PublicData data, PublicData::decode(publicData));
  std::shared_ptr<RemoteMemory> memory(
      new RemoteMemory(std::move(agent), address, std::move(data)));
  if (memory->data_.reference) {
    PEERLANE_ASSIGN(const auto reference, RegionReference::decode(*memory->data_.reference));
    memory->owner_ = reference.owner;
  }
  return memory;
}

Result<RemoteMemory::Imported> RemoteMemory::from(Context& here) {
  if (!data_.reference)
    return Status(Code::kInvalidArgument, "memory of 0 bytes is neither read nor written");
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto known = imports_.find(&here);
  if (known != imports_.end()) return Imported{known->second.peer, &known->second.region};
  Import import;
  PEERLANE_ASSIGN(import.peer, peer(here));
  PEERLANE_ASSIGN(import.region, import.peer.importRegion(*data_.reference));
  const Import& kept = imports_.emplace(&here, std::move(import)).first->second;
  return Imported{kept.peer, &kept.region};
}

}  // namespace peerlane::nixl
