// SPDX-License-Identifier: Apache-2.0
//
// BlockList: the blocks of one post, after block_check.h has accepted them: which regions, which
// bytes of those, in which direction. Import, gates and lowering read it. A value: copies name the
// same regions and keep them alive. The post's BlockProgram owns it. External synchronization
// required.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "peerlane/channel/blocks/blocks.h"
#include "peerlane/core/counted_list.h"
#include "peerlane/memory/region_table.h"
#include "peerlane/program/model/program.h"
#include "peerlane/session/peer/peer.h"

namespace peerlane {

// One run of bytes, by the numbers of BlockList::locals and BlockList::remotes.
struct BlockPiece {
  size_t local = 0;
  uint64_t localOffset = 0;
  size_t remote = 0;
  uint64_t remoteOffset = 0;
  uint64_t bytes = 0;
};

struct BlockList {
  // In `layout`, targets have these numbers until the list is lowered: local region i has number
  // firstLocal + i, remote region j has number firstRemote + j.
  static constexpr TargetId kRemoteBit = 0x4000;
  TargetId firstLocal = 0;
  TargetId firstRemote = kRemoteBit;

  Direction direction = Direction::kPut;
  uint64_t bytes = 0;  // of one post; of one block where the layout is indexed
  CountedList<std::shared_ptr<RegionRecord>> locals;
  CountedList<RemoteRegion> remotes;
  CopyLayout layout;

  bool isPut() const { return direction == Direction::kPut; }
  bool empty() const { return locals.empty(); }
  Access wantedAccess() const { return isPut() ? Access::kRemoteWrite : Access::kRemoteRead; }

  bool isRemote(TargetId target) const { return target >= firstRemote; }
  // No local region has the number of a remote one.
  bool hasRoomForNumbers() const { return firstLocal + locals.size() <= firstRemote; }
  // The place in `locals` of this side of a block.
  size_t localOf(const Segment& block) const {
    return size_t{isPut() ? block.from : block.to} - firstLocal;
  }
  // The place in `remotes` of the peer's side of a block.
  size_t remoteOf(const Segment& block) const {
    return size_t{isPut() ? block.to : block.from} - firstRemote;
  }

  // All blocks in their order; indexed ones with their numbers, which were checked.
  std::vector<BlockPiece> pieces(std::span<const uint32_t> localIndex,
                                 std::span<const uint32_t> remoteIndex) const;
};

}  // namespace peerlane
