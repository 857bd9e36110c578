// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/context/region_holders.h"

#include <utility>

#include "peerlane/session/context/peer_table.h"

namespace peerlane {

std::string RegionHolders::inWords(const RegionRevocation& revocation) const {
  const RegionRecord& record = *revocation.record;
  std::string text = "region " + std::to_string(record.allocation) + " (" +
                     std::to_string(record.bytes) +
                     " bytes) to be let go of: " + std::to_string(record.gate.pins()) +
                     " transfers use it, " + std::to_string(revocation.holders.load()) +
                     " peers have it imported" + peersInWords(record.allocation);
  if (revocation.unpinning.load() && !revocation.unpinned.load())
    text += "; a GPU that something runs on has it pinned";
  return text;
}

// ": peer 3 (process 12) ready, peer 4, which left without a goodbye"; empty: none.
std::string RegionHolders::peersInWords(uint64_t allocation) const {
  std::string text;
  const char* between = ": ";
  for (const uint64_t number : regions_.importers(allocation))
    if (const std::string peer = peers_.inWords(number); !peer.empty())
      text += std::exchange(between, ", ") + peer;
    else if (absentees_.isWaitedFor(number))
      text += std::string(std::exchange(between, ", ")) + "peer " + std::to_string(number) +
              ", which left without a goodbye";
  return text;
}

RegionHolders::Asking::~Asking() {
  for (const auto& peer : peers_) peer->grants().askForRevocations();
}

void RegionHolders::ask(const RegionRecord& region, bool freed, std::atomic<size_t>& holders,
                        const std::function<void()>& done, Asking& asking) const {
  for (const uint64_t number : regions_.importers(region.allocation)) {
    const auto peer = peers_.find(number);
    if (!peer && !absentees_.isWaitedFor(number)) continue;
    holders.fetch_add(1);
    if (!peer) {
      absentees_.await(number, done);
      continue;
    }
    peer->grants().revokeLater(region.allocation, region.generation, freed, done);
    asking.peers_.insert(peer);
  }
}

std::optional<RegionHolders::Silent> RegionHolders::whoIsSilent(uint64_t allocation) const {
  for (const uint64_t number : regions_.importers(allocation)) {
    const auto peer = peers_.find(number);
    if (peer ? peer->state() == PeerState::kSilent || peer->over() : absentees_.isWaitedFor(number))
      return Silent{number, /*isAbsent=*/!peer};
  }
  return std::nullopt;
}

}  // namespace peerlane
