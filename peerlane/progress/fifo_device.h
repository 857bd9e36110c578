// SPDX-License-Identifier: Apache-2.0
//
// The FIFO of a port: threads of a device push requests, one host thread pops them (fifo.h). A ring
// of 16-byte slots in memory of the host; a request takes one or two. The number of the lap, odd or
// even, is the top bit of every word, so a slot says by itself that it was written: no counter
// follows the data, and a store that should arrive in two parts is not mistaken for a whole one.
// mscclpp's FIFO has the idea of lap bits. Threads of all kinds may push at once, more of them than
// there are slots.
#pragma once

#include <cstdint>

#include "peerlane/core/device_code.h"
#include "peerlane/program/ring/port_request.h"

namespace peerlane::port {

// Plain values; passed to kernels. Lifetime of what it points to: the Fifo's.
struct FifoHandle {
  WordPair* slots = nullptr;         // host memory; written by pushers, read by the popper
  const uint64_t* tail = nullptr;    // host memory: slots that were popped; written by the popper
  const uint64_t* closed = nullptr;  // host memory: not 0: no thread pops any more
  uint64_t* head = nullptr;          // memory of the device: slots that were given out
  uint64_t* tailSeen = nullptr;  // memory of the device: the largest tail that a pusher has read,
                                 // or kClosedTail
  uint64_t slotCount = 0;        // a power of two
  uint32_t lapShift = 0;         // its logarithm
};

PEERLANE_DEVICE constexpr uint64_t lapMark(uint64_t position, uint32_t lapShift) {
  return (position >> lapShift & 1) != 0 ? 0 : kLapBit;
}

// At most so many waiting pushers read the host's words; they pass the result to the others in
// `tailSeen`. Each read crosses PCIe: reads by thousands of threads would slow down the few that
// can go on.
inline constexpr uint64_t kLookers = 32;
inline constexpr uint32_t kLooksPerClosedLook = 16;
// The value of `tailSeen` once the FIFO is closed: above every tail, and small enough that sums
// with it do not overflow.
inline constexpr uint64_t kClosedTail = uint64_t{1} << 62;

// Waits for room up to `end`. False: the FIFO was closed.
PEERLANE_DEVICE inline bool awaitRoom(const FifoHandle& fifo, uint64_t end) {
  for (uint32_t looks = 1;; ++looks) {
    const uint64_t seen = loadRelaxed(fifo.tailSeen);
    if (seen >= kClosedTail) return false;
    if (end <= seen + fifo.slotCount) return true;
    if (end <= seen + fifo.slotCount + kLookers) {
      const uint64_t tail = loadAcquire(fifo.tail);
      if (tail != seen) raise(fifo.tailSeen, tail);
      if (end <= tail + fifo.slotCount) return true;
      if (looks % kLooksPerClosedLook == 0 && loadRelaxed(fifo.closed) != 0)
        raise(fifo.tailSeen, kClosedTail);
    } else {
      cpuRelax();
    }
    pauseBetween(looks);
  }
}

// Pushes a request. The proxy that carries it out sees the writes that this thread made before.
// Returns the position after the request; 0 when the FIFO was closed while there was no room, after
// which it takes no request any more. Requires: isEncodable().
PEERLANE_DEVICE inline uint64_t push(const FifoHandle& fifo, const PortRequest& request) {
  const EncodedRequest encoded = encode(request);
  const uint64_t first = fetchAdd(fifo.head, encoded.count);
  const uint64_t end = first + encoded.count;
  if (!awaitRoom(fifo, end)) return 0;
  // The halves become visible in any order, and the popper looks at both; only one of them has to
  // release the earlier writes. It is the half that is stored first, because a release waits for
  // the stores before it.
  for (uint32_t i = 0; i < encoded.count; ++i) {
    const uint64_t position = first + i;
    const uint64_t mark = lapMark(position, fifo.lapShift);
    WordPair* slot = fifo.slots + (position & (fifo.slotCount - 1));
    const WordPair value = {encoded.halves[i].first | mark, encoded.halves[i].second | mark};
    if (i == 0)
      storePairRelease(slot, value);
    else
      storePairRelaxed(slot, value);
  }
  return end;
}

}  // namespace peerlane::port
