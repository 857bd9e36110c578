// SPDX-License-Identifier: Apache-2.0
//
// BlockImport: the memory of the peer that one post's blocks touch and this side does not reach
// yet: regions that are not imported, and chunks of regions that are not mapped. It asks the peer
// for them, and tells when all are here or why one will not come. The post's BlockProgram owns it;
// each call takes the list that it is about. External synchronization required; the answers come
// from the progress thread, through the import slots and chunk maps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "peerlane/channel/blocks/block_list.h"
#include "peerlane/core/status.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {

class BlockImport {
 public:
  // Asks for regions that are not imported, and for the chunks of regions that the blocks touch.
  // True when all is imported; it stays so.
  bool request(const BlockList& blocks, PeerCore& peer);
  // The first import of those that failed; OK else.
  Status failure(const BlockList& blocks) const;
  // All bytes that the blocks touch of this remote region can be addressed here.
  bool reaches(const BlockList& blocks, size_t remote) const;
  // Must be called before the segments of a list leave it while reaches() is false: request() still
  // asks for the chunks that they touched.
  void keepTouched(const BlockList& blocks);

 private:
  // Bytes of a remote region that the blocks touch; of strided and indexed ones, also the bytes
  // between them.
  struct Touched {
    size_t remote;
    uint64_t offset;
    uint64_t bytes;
  };
  template <typename Visit>
  void eachTouched(const BlockList& blocks, const Visit& visit) const;
  bool touchesOnlyMapped(const BlockList& blocks, size_t remote) const;

  std::vector<Touched> kept_;  // by keepTouched()
  bool asked_ = false;         // for all chunks that are touched
};

}  // namespace peerlane
