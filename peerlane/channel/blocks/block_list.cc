// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/blocks/block_list.h"

namespace peerlane {

std::vector<BlockPiece> BlockList::pieces(std::span<const uint32_t> localIndex,
                                          std::span<const uint32_t> remoteIndex) const {
  std::vector<BlockPiece> pieces;
  const auto add = [&](const Segment& block) {
    const size_t local = localOf(block), remote = remoteOf(block);
    if (isPut())
      pieces.push_back({local, block.fromOffset, remote, block.toOffset, block.bytes});
    else
      pieces.push_back({local, block.toOffset, remote, block.fromOffset, block.bytes});
  };
  if (layout.kind != CopyLayout::Kind::kIndexed) {
    layout.eachBlock(add);
    return pieces;
  }
  const auto to = isPut() ? remoteIndex : localIndex;
  const auto from = isPut() ? localIndex : remoteIndex;
  for (size_t i = 0; i < to.size(); ++i) add(layout.blockAt(to[i], from[i]));
  return pieces;
}

}  // namespace peerlane
