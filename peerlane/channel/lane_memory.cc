// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/lane_memory.h"

#include <algorithm>

#include "peerlane/memory/host_provider.h"

namespace peerlane {
namespace {

// Forgets the region once nobody imports it. What still serves a peer (a broken one: it said that
// it had let go) keeps it until the context ends.
void forgetIfFree(PeerCore& peer, const RegionRecord& record) {
  if (!peer.regions().importers(record.allocation).empty() || !record.gate.drained()) return;
  peer.regions().remove(record.allocation);
}

}  // namespace

Result<std::shared_ptr<RegionRecord>> makeLaneMemory(PeerCore& peer, uint64_t bytes) {
  HostProvider host;
  PEERLANE_ASSIGN(
      auto memory,
      host.allocate(bytes, {.device = {}, .hugePages = HugePages::kOff, .numaNode = std::nullopt}));
  std::byte* base = memory->data();
  PEERLANE_ASSIGN(auto description, host.classify(base, bytes));
  if (!description)
    return Status(Code::kInternal, "the host provider does not know its own memory");
  return peer.regions().add(base, bytes, Access::kRemoteReadWrite, std::move(*description),
                            std::move(memory));
}

RegionReference referenceTo(const PeerCore& peer, const RegionName& name) {
  RegionReference reference;
  const auto owner = peer.context().bytes();
  std::transform(owner.begin(), owner.end(), reference.owner.begin(),
                 [](std::byte b) { return static_cast<uint8_t>(b); });
  reference.allocation = name.allocation;
  reference.generation = name.generation;
  reference.bytes = name.bytes;
  reference.access = name.access;
  return reference;
}

void retireRegion(const std::shared_ptr<RegionRecord>& record,
                  const std::vector<std::shared_ptr<PeerCore>>& peers) {
  if (!record || peers.empty()) return;
  RegionTable& regions = peers.front()->regions();
  regions.setState(record->allocation, RegionState::kClosing);
  record->gate.close();
  // Weak: a closure that an ended progress thread never runs must not keep the context alive.
  std::vector<std::weak_ptr<PeerCore>> weak(peers.begin(), peers.end());
  peers.front()->progress().post([record, weak = std::move(weak)] {
    for (const auto& each : weak) {
      const auto peer = each.lock();
      if (!peer) continue;
      const auto holders = peer->regions().importers(record->allocation);
      if (std::find(holders.begin(), holders.end(), peer->number()) == holders.end()) {
        forgetIfFree(*peer, *record);
        continue;
      }
      peer->revoke(record->allocation, record->generation, /*freed=*/false, [record, each] {
        if (const auto alive = each.lock()) forgetIfFree(*alive, *record);
      });
    }
  });
}

}  // namespace peerlane
