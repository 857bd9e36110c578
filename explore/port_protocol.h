// SPDX-License-Identifier: Apache-2.0
//
// Port channels as programs: what threads of a device, the proxy, the resident port and the peer do
// to the words they share, written in the ops of the waist so that the explorer can run every
// interleaving of it. The code itself (fifo_device.h, fifo.cc, channel/port/port_channel_device.h,
// channel/port/port_turn.cc, program/ring/resident_port_device.h) follows it word by word but is
// not made of it: branches are not ops, so each way through a branch is a sequence of programs of
// its own. Thread-safe: no state.
//
//   slots[position]  LL packets, two to a slot; the number is that of the lap
//   tail             counter: slots that were popped; stored by the proxy
//   done             counter: position up to which a semaphore's requests were carried out; stored
//                    by the proxy
//   first, second    counters at the peer: signals that threads added, the running total of those
//                    that the proxy stored
//
// A slot is 16 bytes in two words, each with the mark of its lap in the top bit: an LL packet is
// such a word. Numbers grow where marks alternate. One bit is enough as long as a popper never
// finds a number but its lap's or the one before: it has seen the one before, numbers do not go
// back, and a later number would mean that a later request lies there; all three are findings.
//
// Not here: `head`, which gives every position to one pusher (cursors do that), and `pushed`, which
// is read only by threads that come after the push by program order or by the user's own
// synchronization. A thread that waits for signals waits for the sum of the two counters. Here each
// of them by itself must say that all puts before its signals are there, which is more than that.
//
// A queue (program/ring/port_queue.h) may do the proxy's work after portPop() much later: the model
// lets any copy of an actor, and any store that is not a release, wait while the actor goes on.
// Waits have acquire meaning here. In the code the look at `tailSeen` alone has not: only stores
// depend on it, and no processor makes a store before it knows that it must.
#pragma once

#include <cstdint>

#include "peerlane/program/model/program.h"

namespace peerlane {

inline constexpr uint32_t kPortSlotBytes = 16;                      // of a request's half
inline constexpr uint32_t kPortSlotStrideBytes = 2 * kPacketBytes;  // with its marks, in the model
inline constexpr uint32_t kPortMostHalves = 2;

// Cursors of portPush() and portPop(). The halves of one request may lie in two laps.
enum PortFifoCursor : CursorId { kPortPosition, kPortLap, kPortSecondLap };

enum PortPushTarget : TargetId {
  kPushRequest,  // local
  kPushSlots,    // remote ring
  kPushTail,     // counter
};
enum PortPopTarget : TargetId {
  kPopSlots,    // local ring
  kPopRequest,  // local: the request in the proxy's hands
  kPopTail,     // counter
};

// Waits for room, writes the slots of one request: `halves` of them.
Program portPush(uint32_t slots, uint32_t halves);
// Takes the next request and gives its slots back.
Program portPop(uint32_t slots, uint32_t halves);

// Parts of carrying a request out, by the proxy or by threads of the device. Targets: to, from.
Program portPut(uint64_t bytes);
// The proxy signals: cursor 0 is what it has signalled before. Target: `second`.
Program portStoreSignal();
// The proxy says that requests are done: cursor 0 is the position after the last. Target: `done`.
Program portStoreDone();

// A thread signals without the proxy, which it does only once nothing of its semaphore is under
// way: cursor 0 is what `pushed` was, 0 where the proxy was never asked. Targets: done, first.
Program portSignalInline();
// --- The resident port, while it is open ---
//
//   slots    as above; six words are two here, which come apart all the same
//   served   counter: shares that blocks have done, of all requests. (In the code one for each
//            slot, which its last block sets back.)
//   tail, done   raised by the block that was the last: where two do it in the other order, the
//                lower one is no store
//
// Which block is the last of a request is a branch, and so is whether a pusher finds the port open:
// the word that says so gives out the places, so every pusher that has a place is served.
// program/resident_port_test.cc runs that in threads.

// Waits for room and writes one slot. Targets as portPush().
Program residentPush(uint32_t slots);
enum ResidentServeTarget : TargetId {
  kServeSlots,    // local ring
  kServeRequest,  // local: the request in the block's hands
  kServeTo,       // the block's share
  kServeFrom,
  kServeCount,  // counter: `served`
};
// By each block: takes the next request and does its share. Cursors: kPortPosition, kPortLap.
Program residentServe(uint32_t slots, uint64_t bytes);
// By the last block: cursor 0 is what `served` was before the request's first share, cursor 1 the
// request's position. `raises`: nobody has raised them further. Targets: served, first, done, tail.
Program residentFinish(uint32_t blocks, bool raises);

// Waits for one more than cursor 0: for a signal (`first` or `second`), or for a flush (`done`).
Program portAwait();

}  // namespace peerlane
