// SPDX-License-Identifier: Apache-2.0
//
// How the blocks of threads of a copy share a list: every entry has its tiles, the tiles of all
// entries are numbered through, and each block takes an equal run of numbers. It searches its first
// entry once, all threads together, and then walks: entries are staged in shared memory a few
// hundred at a time, and the threads fetch those of the next turn while they copy this one. All
// threads of a block must call every function.
#pragma once

#if defined(__CUDACC__)

#include "peerlane/program/kernel/copy/copy_kernel.h"
#include "peerlane/program/words/copy_device.h"
#include "peerlane/program/words/word_device.h"

namespace peerlane::kernel {

// Entries of one turn, a column each: neighbouring threads write neighbouring words. The copy
// leaves out an entry whose `to` is null, whatever tiles it has.
template <uint32_t kEntries>
struct EntryStage {
  const std::byte* from[kEntries];
  std::byte* to[kEntries];
  uint64_t bytes[kEntries];
  uint64_t tileEnd[kEntries];

  __device__ __forceinline__ void put(uint32_t at, const CopyPiece& piece, uint64_t end) {
    from[at] = piece.from;
    to[at] = piece.to;
    bytes[at] = piece.bytes;
    tileEnd[at] = end;
  }
};

// A source of entries has: find(tile), the entry that holds a tile; countUpTo(end), how many
// entries to look at for the tiles below `end`: not many more than hold them, where entries are
// slow to read; tileBegin(entry); fetch(entry), which only loads; and put(), which computes from
// what was fetched.
struct OnePiece {
  CopyPiece piece;

  struct Fetched {};
  __device__ uint64_t countUpTo(uint64_t) const { return 1; }
  __device__ uint64_t find(uint64_t) const { return 0; }
  __device__ uint64_t tileBegin(uint64_t) const { return 0; }
  __device__ Fetched fetch(uint64_t) const { return {}; }
  template <class Stage>
  __device__ void put(const Fetched&, uint64_t, Stage& stage, uint32_t at) const {
    stage.put(at, piece, copyTiles(piece.bytes));
  }
};

// How many of `count` ascending numbers are at most `tile`.
template <class Number>
__device__ inline uint64_t searchUpTo(const Number* ends, uint64_t count, uint64_t tile) {
  uint64_t low = 0, high = count;
  while (low < high) {
    const uint64_t step = (high - low + blockDim.x - 1) / blockDim.x;
    const uint64_t probe = low + threadIdx.x * step;
    const uint32_t past = __syncthreads_count(probe < high && ends[probe] <= tile);
    if (past == 0) break;
    const uint64_t reach = low + past * step;
    low = reach - step + 1;
    if (reach < high) high = reach;
  }
  return low;
}

template <uint32_t kMost>
struct InlinePieces {
  uint32_t pieceCount;
  uint32_t tileEnds[kMost];
  CopyPiece pieces[kMost];

  struct Fetched {};
  // A warp whose threads read different parameters reads them one after another.
  __device__ uint64_t countUpTo(uint64_t end) const { return find(end - 1) + 1; }
  __device__ uint64_t find(uint64_t tile) const { return searchUpTo(tileEnds, pieceCount, tile); }
  __device__ uint64_t tileBegin(uint64_t entry) const {
    return entry == 0 ? 0 : tileEnds[entry - 1];
  }
  __device__ Fetched fetch(uint64_t) const { return {}; }
  template <class Stage>
  __device__ void put(const Fetched&, uint64_t entry, Stage& stage, uint32_t at) const {
    stage.put(at, pieces[entry], tileEnds[entry]);
  }
};

struct ListedPieces {
  PieceList list;

  // Read only when staged: held over a turn it would cost registers that the copy needs.
  struct Fetched {};
  __device__ uint64_t countUpTo(uint64_t end) const {
    return list.isFar ? find(end - 1) + 1 : list.count;
  }
  __device__ uint64_t find(uint64_t tile) const {
    return searchUpTo(list.tileEnds, list.count, tile);
  }
  __device__ uint64_t tileBegin(uint64_t entry) const {
    return entry == 0 ? 0 : list.tileEnds[entry - 1];
  }
  __device__ Fetched fetch(uint64_t) const { return {}; }
  template <class Stage>
  __device__ void put(const Fetched&, uint64_t entry, Stage& stage, uint32_t at) const {
    stage.put(at, list.pieces[entry], list.tileEnds[entry]);
  }
};

struct EqualBlocks {
  BlockList list;
  uint64_t tilesPerBlock;

  struct Fetched {
    uint32_t from, to;
  };
  __device__ uint64_t countUpTo(uint64_t end) const { return (end - 1) / tilesPerBlock + 1; }
  __device__ uint64_t find(uint64_t tile) const { return tile / tilesPerBlock; }
  __device__ uint64_t tileBegin(uint64_t entry) const { return entry * tilesPerBlock; }
  __device__ Fetched fetch(uint64_t entry) const {
    return {list.fromIndex == nullptr ? 0 : list.fromIndex[entry],
            list.toIndex == nullptr ? 0 : list.toIndex[entry]};
  }
  template <class Stage>
  __device__ void put(const Fetched& fetched, uint64_t entry, Stage& stage, uint32_t at) const {
    const uint64_t from = list.fromIndex == nullptr ? entry : fetched.from;
    const uint64_t to = list.toIndex == nullptr ? entry : fetched.to;
    const uint64_t end = (entry + 1) * tilesPerBlock;
    const bool isOutside = (list.fromLimit != 0 && from >= list.fromLimit) ||
                           (list.toLimit != 0 && to >= list.toLimit);
    if (isOutside) {
      if (list.fault != nullptr) device::storeWordRelaxed(list.fault, list.faultValue);
      return stage.put(at, CopyPiece{}, end);
    }
    stage.put(at,
              {list.from + list.fromStride * from, list.to + list.toStride * to, list.blockBytes},
              end);
  }
};

// Calls consume(stage, entries, firstTile, begin, end) for each run of staged entries: `firstTile`
// is the number of entry 0's first tile, [begin, end) are the tiles of the run to copy. Calls
// `ready` once, when the loads of the first entries are on their way; the walk goes on if it
// returns true. Returns the result of `ready`.
template <uint32_t kEntries, class Source, class Ready, class Consume>
__device__ __forceinline__ bool walkEntries(const Source& source, uint64_t begin, uint64_t end,
                                            EntryStage<kEntries> (&stages)[2], Ready&& ready,
                                            Consume&& consume) {
  const uint32_t capacity = blockDim.x < kEntries ? blockDim.x : kEntries;
  if (begin >= end) return ready();
  uint64_t entry = source.find(begin);
  uint64_t firstTile = source.tileBegin(entry);
  __shared__ uint64_t count;  // a register for it would be one too many for the copy
  const uint64_t counted = source.countUpTo(end);
  if (threadIdx.x == 0) count = counted;
  typename Source::Fetched fetched{};
  if (threadIdx.x < capacity && entry + threadIdx.x < counted)
    fetched = source.fetch(entry + threadIdx.x);
  if (!ready()) return false;
  __syncthreads();
  for (uint32_t turn = 0;; turn ^= 1) {
    const uint32_t staged =
        count - entry < capacity ? static_cast<uint32_t>(count - entry) : capacity;
    EntryStage<kEntries>& stage = stages[turn];
    if (threadIdx.x < staged) source.put(fetched, entry + threadIdx.x, stage, threadIdx.x);
    // One barrier per turn: a thread that is past it has left the turn before, whose stage is
    // written next.
    __syncthreads();
    const uint64_t lastTile = stage.tileEnd[staged - 1];
    entry += staged;
    if (lastTile < end && threadIdx.x < capacity && entry + threadIdx.x < count)
      fetched = source.fetch(entry + threadIdx.x);
    consume(stage, staged, firstTile, begin > firstTile ? begin : firstTile,
            end < lastTile ? end : lastTile);
    if (lastTile >= end || entry >= count) return true;
    firstTile = lastTile;
  }
}

// The entry at or after `entry` that holds tile `tile`; a warp looks at 32 at a time.
template <uint32_t kEntries>
__device__ __forceinline__ uint32_t entryOfTile(const EntryStage<kEntries>& stage, uint32_t staged,
                                                uint32_t entry, uint64_t tile) {
  const uint32_t lane = device::laneOfWarp();
  for (;;) {
    const uint32_t probe = entry + lane;
    const uint32_t past =
        __ballot_sync(device::kAllLanes, probe < staged && stage.tileEnd[probe] <= tile);
    entry += __popc(past);
    if (past != device::kAllLanes) return entry;
  }
}

}  // namespace peerlane::kernel

#endif  // defined(__CUDACC__)
