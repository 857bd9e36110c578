// SPDX-License-Identifier: Apache-2.0
//
// Memory that a communicator makes or registers for its peers without being asked by the user:
// areas, rings, unregistered buffers. Set-up path. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "peerlane/channel/message/host/message_format.h"
#include "peerlane/memory/region_table.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {

// Takes a region back in the background: refuses new uses from now on, and frees the memory (if the
// region owns it) when every one of `peers` that imported it has let go or is gone.
void retireRegion(const std::shared_ptr<RegionRecord>& record,
                  const std::vector<std::shared_ptr<PeerCore>>& peers);

inline RegionName nameOf(const RegionRecord& record) {
  return {record.allocation, record.generation, record.bytes, record.access};
}

// A region of the peer, as its message or note named it, for Imports::request.
RegionReference referenceTo(const PeerCore& peer, const RegionName& name);

}  // namespace peerlane
