// SPDX-License-Identifier: Apache-2.0
//
// Lists that are grids: many blocks of one size between two regions, each side's at multiples of a
// stride, as the pages of a cache are. Where the stride is shorter than a block, they are off any
// grid of whole blocks, and may overlap at different places. Such a list is two arrays of block
// numbers, a quarter of what its pieces are, and a GPU copies it like a post of an indexed plan.
// Thread-safe: no state.
#pragma once

#include <cstdint>
#include <span>

#include "peerlane/channel/blocks/blocks.h"
#include "peerlane/program/model/program.h"

namespace peerlane {

// Lists of fewer blocks travel in the parameters of a launch (kernel::kInlinePieces), which is
// quicker.
inline constexpr size_t kLeastGridBlocks = 513;

// Makes `layout` a numbered one, but for its targets. True: every block is checked, inside its
// region, and written once. False: it is no grid, or it is wrong, or so many blocks adjoin that
// pieces are better; nothing is said of its blocks then. `localBytes`, `remoteBytes`: of the
// regions that the first block names.
bool findGrid(Direction direction, std::span<const Block> blocks, uint64_t localBytes,
              uint64_t remoteBytes, CopyLayout& layout);

}  // namespace peerlane
