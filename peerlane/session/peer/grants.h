// SPDX-License-Identifier: Apache-2.0
//
// Grants: what one peer imports of this side's memory, and how that is taken back. To take a region
// back the owner asks every importer, which lets running transfers end first; only an importer that
// confirmed, or is proven dead, sets the memory free. Owned by PeerCore; confined to the progress
// thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "peerlane/core/counted_map.h"
#include "peerlane/memory/region_table.h"
#include "peerlane/memory/remote_memory.h"
#include "peerlane/session/peer/link_set.h"
#include "peerlane/session/peer/peer_environment.h"
#include "peerlane/session/wire/control_message.h"

namespace peerlane {

class Grants {
 public:
  using Revocations = std::vector<std::function<void()>>;

  Grants(PeerEnvironment& env, const LinkSet& links) : env_(env), links_(links) {}

  // Tells the peer what it must know to reach this side's slab over a link.
  Status sendSlab(const RegionRecord& slab, const Link& link, LinkPart own) {
    return send(/*request=*/0, slab, link, std::move(own));
  }
  // Takes a region back; `done` is called when the peer has confirmed or is proven dead. `freed`:
  // the memory has gone already.
  void revoke(uint64_t allocation, uint64_t generation, bool freed, std::function<void()> done) {
    revokeLater(allocation, generation, freed, std::move(done));
    askForRevocations();
  }
  // The same for one of many: the peer is asked by askForRevocations().
  void revokeLater(uint64_t allocation, uint64_t generation, bool freed,
                   std::function<void()> done);
  void askForRevocations();

  Status handle(control::ImportRequest& message);
  Status handle(control::ChunkRequest& message);
  Status handle(control::Release& message);
  Status handle(control::RevokeDone& message);

  // The peer confirms nothing any more: what is to be called when its end is proven.
  Revocations takeRevocations();
  // The peer has left: there is nothing to be taken back from it.
  void close() { isClosed_ = true; }

 private:
  // Errors: kNotSupported (no link for that), the link's.
  Status grant(const control::ImportRequest& message, const RegionRecord& record);
  Status send(uint64_t request, const RegionRecord& record, const Link& link, LinkPart own);
  Result<std::vector<VmmHandle>> exportChunks(const control::ChunkRequest& message);

  PeerEnvironment& env_;
  const LinkSet& links_;
  CountedMap<uint64_t, std::function<void()>> revocations_;  // by request
  std::deque<control::Revoke> queued_;  // of them, not asked for yet: enough are under way
  bool isClosed_ = false;
};

}  // namespace peerlane
