// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/message/host/lane_memory.h"

#include <algorithm>

namespace peerlane {
namespace {

// Forgets the region once no peer imports it. A region that still serves a peer (a broken one: it
// said that it had let go) is kept until the context ends.
void forgetIfFree(RegionTable& regions, const RegionRecord& record) {
  if (!regions.importers(record.allocation).empty() || !record.gate.drained()) return;
  regions.remove(record.allocation);
}

}  // namespace

RegionReference referenceTo(const PeerCore& peer, const RegionName& name) {
  RegionReference reference = peer.referenceTo(name.allocation, name.generation, name.bytes);
  reference.access = name.access;
  return reference;
}

void retireRegion(const std::shared_ptr<RegionRecord>& record,
                  const std::vector<std::shared_ptr<PeerCore>>& peers) {
  if (!record || peers.empty()) return;
  RegionTable& regions = peers.front()->regions();
  regions.setState(record->allocation, RegionState::kClosing);
  record->gate.close();
  // Weak: a closure that an ended progress thread never runs must not keep the context alive. One
  // that it runs finds the table, which is the context's. A peer that is no more imports nothing.
  std::vector<std::weak_ptr<PeerCore>> weak(peers.begin(), peers.end());
  peers.front()->progress().post([record, weak = std::move(weak), &regions] {
    for (const auto& each : weak) {
      const auto peer = each.lock();
      const auto holders = regions.importers(record->allocation);
      if (!peer || std::find(holders.begin(), holders.end(), peer->number()) == holders.end()) {
        forgetIfFree(regions, *record);
        continue;
      }
      peer->grants().revoke(record->allocation, record->generation, /*freed=*/false,
                            [record, &regions] { forgetIfFree(regions, *record); });
    }
  });
}

}  // namespace peerlane
