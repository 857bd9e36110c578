// SPDX-License-Identifier: Apache-2.0
//
// The order in which gates are entered does not matter: entering never waits, so two posts cannot
// wait for each other.
#include "peerlane/channel/blocks/block_gates.h"

#include "peerlane/os/mappings/free_watch.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {

Status enterLocalGates(const BlockList& blocks) {
  FreeWatch::settle();  // what was freed before the post has its gate closed
  for (size_t i = 0; i < blocks.locals.size(); ++i) {
    if (blocks.locals[i]->gate.enter()) continue;
    const size_t closed = i;
    while (i-- > 0) blocks.locals[i]->gate.leave();
    return blocks.locals[closed]->whyClosed();
  }
  return Status::ok();
}

void leaveLocalGates(const BlockList& blocks) {
  for (const auto& local : blocks.locals) local->gate.leave();
}

Status enterGates(const BlockList& blocks) {
  PEERLANE_RETURN_IF_ERROR(enterLocalGates(blocks));
  for (size_t i = 0; i < blocks.remotes.size(); ++i) {
    ImportedRegion& region = *blocks.remotes[i].slot()->region;
    if (region.gate.enter()) continue;
    // Relaxed: it only chooses the sentence below.
    const bool isLeft = region.isLeft.load(std::memory_order_relaxed);
    while (i-- > 0) blocks.remotes[i].slot()->region->gate.leave();
    leaveLocalGates(blocks);
    if (isLeft)
      return Status(Code::kTryAgain,
                    "the link that reached a remote region of this transfer has just failed; post "
                    "again, over another link if one reaches it");
    return region.whyClosed();
  }
  return Status::ok();
}

void leaveGates(const BlockList& blocks) {
  leaveLocalGates(blocks);
  for (const RemoteRegion& remote : blocks.remotes) remote.slot()->region->gate.leave();
}

}  // namespace peerlane
