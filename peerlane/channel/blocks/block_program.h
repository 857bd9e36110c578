// SPDX-License-Identifier: Apache-2.0
//
// BlockProgram: one put, get or plan on its way from what a user asked to a program. It holds the
// checked list and its import, and passes them to the steps, each of which is an object or a few
// functions of its own: block_check.h, block_import.h, block_gates.h, block_mover.h,
// block_lowering.h. The order: take(), imported() until it is true, enter(), lower(); leave() at
// the end, and clear() before another round. The transfer or plan owns it; copies and moves are
// free. External synchronization required.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "peerlane/channel/blocks/block_import.h"
#include "peerlane/channel/blocks/block_list.h"
#include "peerlane/channel/blocks/blocks.h"
#include "peerlane/channel/blocks/owned_notify.h"
#include "peerlane/program/model/binding.h"
#include "peerlane/program/model/program.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {

class BlockProgram {
 public:
  // Takes the blocks of one post: rights, ranges, overlaps and owners are checked, nothing is
  // imported. Once, or again after clear().
  // `notify`: what will be lowered with them; null: not known.
  Status take(const PeerCore& peer, Direction direction, std::span<const Block> blocks,
              const OwnedNotify* notify = nullptr);
  Status take(const PeerCore& peer, Direction direction, const StridedBlocks& blocks,
              const OwnedNotify* notify = nullptr);
  Status take(const PeerCore& peer, Direction direction, const IndexedBlocks& blocks);

  // Forgets the blocks and their regions, and keeps the room: others may be taken. Requires: left.
  void clear();

  // Asks for what is not imported: regions, and of those in chunks what these blocks touch. True
  // when all is, so that enter() may be called, and stays so.
  bool imported(PeerCore& peer) { return import_.request(list_, peer); }
  // The first import of those that failed; OK else.
  Status importFailure() const { return import_.failure(list_); }

  // Goes through the gates of every region. Balanced by leave() if it returned OK.
  Status enter();
  void leave();
  // While it is inside: kRevoked where the memory of a region was taken back meanwhile; OK else.
  Status whyRevoked() const;
  // Of a run that ended with kRevoked while no gate was closed: kRevoked, with the region whose
  // memory the agent did not find. Looks at this side's memory.
  Status whyGone() const;

  // The program with its binding; once, for a list of blocks goes into it. As
  // BlockLowering::lower().
  Status lower(const PeerCore& peer, OwnedNotify& notify, Program& program, Binding& binding,
               std::byte* slabWindow = nullptr, Device device = {});

  // As in block_mover.h.
  Result<DeviceExecutor*> executor(const PeerCore& peer, DeviceStream stream) const;
  Status pin(DeviceExecutor& executor) const;
  Status checkIdentity() const;
  const char* engine() const;
  // The link that reaches the first remote region; null where there is none, or it is not imported.
  const Link* link(const PeerCore& peer) const;

  // --- For transfers that are staged, instead of lower() ---
  // Why the blocks cannot go straight, empty when they can.
  std::string whyStaged(const PeerCore& peer, DeviceStream stream) const;
  // All blocks in their order; indexed ones with their numbers, which were checked.
  std::vector<BlockPiece> pieces(std::span<const uint32_t> localIndex = {},
                                 std::span<const uint32_t> remoteIndex = {}) const {
    return list_.pieces(localIndex, remoteIndex);
  }
  // The gates of this side's regions alone, as enter().
  Status enterLocals();
  void leaveLocals();

  Direction direction() const { return list_.direction; }
  uint64_t bytes() const { return list_.bytes; }
  // Without the blocks of a list once that was lowered.
  const CopyLayout& layout() const { return list_.layout; }
  bool empty() const { return list_.empty(); }
  const CountedList<std::shared_ptr<RegionRecord>>& locals() const { return list_.locals; }
  const CountedList<RemoteRegion>& remotes() const { return list_.remotes; }

 private:
  BlockList list_;
  BlockImport import_;
};

}  // namespace peerlane
