// SPDX-License-Identifier: Apache-2.0
//
// The resident port: a resident kernel of few thread blocks that stays on the GPU and copies for
// other kernels, with no host in between. Those kernels push requests into a FIFO in the device's
// memory; every block takes every request and copies its share, and the block that finishes last
// signals the peer. The same source runs in CPU threads, a thread for each block.
//
// The kernel leaves by itself: after a time without work, and at the latest after a longer time
// with work, so that a host thread that waits for the whole GPU (a free, a synchronization) waits
// only briefly. One bit of the word that gives out places in the FIFO says whether the port is
// open. A pusher that finds it shut has no place and must ask the proxy instead; the kernel serves
// every place given out before it leaves. So no request is lost. A kernel that cannot become
// resident, because others fill the GPU, holds up no pusher: the port opens only after all of its
// blocks have started.
#pragma once

#include <cstddef>
#include <cstdint>

#include "peerlane/core/device_code.h"
#include "peerlane/program/words/shared_word.h"

namespace peerlane::port {

inline constexpr uint32_t kResidentSlots = 64;
inline constexpr uint32_t kResidentSlotShift = 6;
inline constexpr uint32_t kResidentHalves = 3;
inline constexpr uint64_t kOpenBit = uint64_t{1} << 63;
inline constexpr uint64_t kNoStop = ~uint64_t{0};

// A request as the blocks read it: with addresses, because the pusher has looked them up.
struct ResidentRequest {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  uint64_t bytes = 0;
  uint64_t count = 0;            // of signals, below 2^63
  uint64_t* outbound = nullptr;  // the peer's word that `count` is added to; null: none
  uint64_t* done = nullptr;      // raised to the request's position + 1
};

// Memory of the device, zeroed before the first launch, which means that the port is shut. Each
// word has a cache line of its own, because different threads write them.
struct ResidentState {
  alignas(64) uint64_t head;     // kOpenBit | places given out; pushers add, the opener stores
  alignas(64) uint64_t tail;     // requests served
  alignas(64) uint64_t arrived;  // blocks that have started, of all launches
  alignas(64) uint64_t left;     // blocks that have ended, of all launches
  alignas(64) uint64_t gate;     // number of the decided launch << 1 | whether it opened
  alignas(64) uint64_t stopAt;   // position where blocks leave; kNoStop while open
  alignas(64) uint64_t beginAt;  // position at which they begin
  alignas(64) uint64_t served[kResidentSlots];  // blocks that have done their share
  alignas(64) WordPair slots[kResidentSlots][4];
};
static_assert(sizeof(WordPair) * 4 == 64, "a request is one line of 64 bytes");

// Part of a channel's handle. A null `state`: there is no resident port.
struct ResidentHandle {
  ResidentState* state = nullptr;
};

PEERLANE_DEVICE constexpr uint64_t residentMark(uint64_t position) {
  return (position >> kResidentSlotShift & 1) != 0 ? 0 : uint64_t{1} << 63;
}

// True when size and count leave the bits of the marks free.
PEERLANE_DEVICE constexpr bool fitsResident(const ResidentRequest& request) {
  return (request.bytes | request.count) >> 63 == 0;
}

// Requires: fitsResident(). False: the port is shut. Else the kernel will serve the request, and
// `end` is the request's position + 1. The threads that serve it see everything that this thread
// wrote or had seen.
PEERLANE_DEVICE inline bool pushResident(const ResidentHandle& port, const ResidentRequest& request,
                                         uint64_t& end) {
  ResidentState& state = *port.state;
  // Both accesses are under way at the same time, so the real tail may be larger.
  uint64_t tail = loadAhead(&state.tail);
  const uint64_t place = fetchAdd(&state.head, 1);
  if ((place & kOpenBit) == 0) return false;
  const uint64_t position = place & ~kOpenBit;
  // The kernel stays until it has served this place, so it will make room.
  for (uint32_t looks = 1; position >= tail + kResidentSlots; ++looks) {
    pauseBetween(looks);
    tail = loadAhead(&state.tail);
  }
  // The readers are threads of this device, so a device-wide fence is enough; it also covers writes
  // that this thread has seen.
  fenceDevice();
  const uint64_t mark = residentMark(position);
  WordPair* const slot = state.slots[position % kResidentSlots];
  const auto word = [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); };
  // Addresses have 49 bits at most.
  storePairRelaxed(&slot[0], {word(request.to) | mark, word(request.from) | mark});
  storePairRelaxed(&slot[1], {request.bytes | mark, request.count | mark});
  storePairRelaxed(&slot[2], {word(request.outbound) | mark, word(request.done) | mark});
  end = position + 1;
  return true;
}

// False while the request, or a part of it, has not arrived.
PEERLANE_DEVICE inline bool readResident(const ResidentState& state, uint64_t position,
                                         ResidentRequest& request) {
  const WordPair* const slot = state.slots[position % kResidentSlots];
  WordPair halves[kResidentHalves];
  for (uint32_t i = 0; i < kResidentHalves; ++i) halves[i] = loadPairAhead(&slot[i]);
  const uint64_t mark = residentMark(position);
  constexpr uint64_t kMarkBit = uint64_t{1} << 63;
  for (const WordPair& half : halves)
    if ((half.first & kMarkBit) != mark || (half.second & kMarkBit) != mark) return false;
  fenceDevice();
  request.to = reinterpret_cast<std::byte*>(halves[0].first & ~kMarkBit);
  request.from = reinterpret_cast<const std::byte*>(halves[0].second & ~kMarkBit);
  request.bytes = halves[1].first & ~kMarkBit;
  request.count = halves[1].second & ~kMarkBit;
  request.outbound = reinterpret_cast<uint64_t*>(halves[2].first & ~kMarkBit);
  request.done = reinterpret_cast<uint64_t*>(halves[2].second & ~kMarkBit);
  return true;
}

// One launch.
struct ResidentJob {
  ResidentState* state = nullptr;
  uint64_t* left = nullptr;  // a word of the host: number of the last launch that has ended
  uint64_t launch = 0;       // counts from 1; one launch follows the other on one stream
  uint64_t idle = 0;         // nanoseconds without a request after which it leaves
  uint64_t longest = 0;      // nanoseconds after which it leaves at the latest
  uint64_t patience = 0;     // nanoseconds that the first blocks wait for the last
};

namespace resident {

// Decides once for all blocks whether this launch opens the port. True: it does.
PEERLANE_DEVICE inline bool decide(ResidentState& state, uint64_t launch, bool opens) {
  for (;;) {
    const uint64_t gate = loadAcquire(&state.gate);
    if (gate >> 1 >= launch) return (gate & 1) != 0;
    if (exchangeIf(&state.gate, gate, launch << 1 | (opens ? 1 : 0))) return opens;
  }
}

// One thread of each block calls it. Returns whether the launch opened the port.
PEERLANE_DEVICE inline bool enter(ResidentState& state, const ResidentJob& job, uint32_t blocks) {
  const uint64_t begin = nanoseconds();
  if (fetchAdd(&state.arrived, 1) + 1 == job.launch * blocks) {
    if (loadAcquire(&state.gate) >> 1 >= job.launch) return decide(state, job.launch, false);
    const uint64_t position = loadRelaxed(&state.stopAt);
    storeRelaxed(&state.beginAt, position);
    storeRelaxed(&state.stopAt, kNoStop);
    fenceSystem();
    if (!decide(state, job.launch, true)) {
      storeRelaxed(&state.stopAt, position);
      return false;
    }
    // Numbers given out while the port was shut were no places.
    storeRelaxed(&state.head, position | kOpenBit);
    return true;
  }
  for (uint32_t looks = 1; loadAcquire(&state.gate) >> 1 < job.launch; ++looks) {
    if (nanoseconds() - begin > job.patience) return decide(state, job.launch, false);
    pauseBetween(looks);
  }
  return decide(state, job.launch, false);
}

// Only the first block calls it: later pushers get no place.
PEERLANE_DEVICE inline void shut(ResidentState& state) {
  if (loadRelaxed(&state.stopAt) != kNoStop) return;
  storeRelaxed(&state.stopAt, fetchAdd(&state.head, kOpenBit) & ~kOpenBit);  // 1 + 1 is 0
}

// One thread of each block calls it, as its last act.
PEERLANE_DEVICE inline void leave(ResidentState& state, const ResidentJob& job, uint32_t blocks) {
  fenceSystem();
  if (fetchAdd(&state.left, 1) + 1 == job.launch * blocks) {
    fenceSystem();
    storeRelaxed(job.left, job.launch);
  }
}

// One thread of each block calls it after the block has copied its share.
PEERLANE_DEVICE inline void finish(ResidentState& state, const ResidentRequest& request,
                                   uint64_t position, uint32_t blocks) {
  fenceSystem();
  uint64_t* const served = &state.served[position % kResidentSlots];
  if (fetchAdd(served, 1) + 1 != blocks) return;
  storeRelaxed(served, 0);
  // Covers the shares of all blocks, and that word.
  fenceSystem();
  if (request.outbound != nullptr) addBehind(request.outbound, request.count);
  raise(request.done, position + 1);
  raise(&state.tail, position + 1);
}

}  // namespace resident

// The work of one block, from its start to its end. `shared`: one place for all threads of the
// block.
template <class Team>
PEERLANE_DEVICE void residentBlock(const Team& team, const ResidentJob& job, uint32_t block,
                                   uint32_t blocks, ResidentRequest& shared) {
  ResidentState& state = *job.state;
  bool opened = false;
  if (team.rank() == 0) opened = resident::enter(state, job, blocks);
  if (team.agree(opened ? 1 : 0) == 0) {
    if (team.rank() == 0) resident::leave(state, job, blocks);
    return;
  }
  // The last block to enter sets the bit soon; this block must not shut the port before that.
  if (team.rank() == 0 && block == 0)
    for (uint32_t looks = 1; (loadAcquire(&state.head) & kOpenBit) == 0; ++looks)
      pauseBetween(looks);
  const uint64_t begin = nanoseconds();
  uint64_t worked = begin;
  for (uint64_t position = loadRelaxed(&state.beginAt);; ++position) {
    uint32_t stops = 0;
    if (team.rank() == 0) {
      for (uint32_t looks = 1;; ++looks) {
        if (readResident(state, position, shared)) break;
        if (loadRelaxed(&state.stopAt) == position) {
          stops = 1;
          break;
        }
        pauseBetween(looks);
        if (block != 0 || looks % 32 != 0) continue;
        const uint64_t now = nanoseconds();
        if (now - worked >= job.idle || now - begin >= job.longest) resident::shut(state);
      }
      worked = nanoseconds();
      if (block == 0 && worked - begin >= job.longest) resident::shut(state);
    }
    if (team.agree(stops) != 0) break;
    team.copyShare(shared.to, shared.from, shared.bytes, block, blocks);
    team.sync();
    if (team.rank() == 0) resident::finish(state, shared, position, blocks);
  }
  if (team.rank() == 0) resident::leave(state, job, blocks);
}

}  // namespace peerlane::port
