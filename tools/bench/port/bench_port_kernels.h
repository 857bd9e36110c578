// SPDX-License-Identifier: Apache-2.0
//
// Kernels of `peerlane bench port`: the library's port channels, and the same patterns by raw loads
// and stores, which are the limits. Enqueued, not waited for. Raw waits give up after some seconds
// and count it as wrong. Free of CUDA's headers; built only where there is CUDA. The calling
// thread's current device must be the stream's own; streams are cudaStream_t.
#pragma once

#include <cstdint>
#include <functional>

#include "peerlane/channel/port/port_channel_device.h"
#include "peerlane/core/status.h"

namespace peerlane::bench {

// On the current device, before anything spins there.
Status loadPortKernels();

inline constexpr uint32_t kPortThreads = 512;
// Counters of a pattern, one for each block, so far apart; zero before the first launch.
inline constexpr uint32_t kPortCounterStride = 16;
inline constexpr uint32_t kMostPortBlocks = 32;

// --- An exchange: ready, their ready, my bytes, their bytes
// ---------------------------------------

struct PortExchange {
  PortChannelHandle ready;  // may be `data` where one warp plays
  PortChannelHandle data;
  uint64_t bytes = 0;
  uint64_t* counters = nullptr;  // of this device
  uint64_t* wrong = nullptr;     // of this device: calls that failed
};
// One semaphore, one warp.
Status portExchangeByWarp(void* stream, const PortExchange& what);
// The same without signals: one warp writes LL packets and takes those of the peer. The packets of
// two exchanges one after the other lie at two places, so a side that has the peer's packets knows
// that the peer has taken those of the exchange before.
struct PacketExchange {
  static constexpr uint64_t kPlace = uint64_t{1} << 20;       // in the memory of the channel
  static constexpr uint64_t kPlaceBytes = uint64_t{1} << 16;  // of the first of two
  PortChannelHandle channel;           // to the peer's memory of packets, 0 before the first one
  const std::byte* packets = nullptr;  // the peer's come here
  std::byte* into = nullptr;
  uint64_t bytes = 0;
  uint64_t* counter = nullptr;  // as PortExchange
  uint64_t* wrong = nullptr;
};
Status portExchangeByPackets(void* stream, const PacketExchange& what);
// Each block puts its slice; all wait for all.
Status portExchangeByBlocks(void* stream, const PortExchange& what, uint32_t blocks);

// The same raw. `mine`: words on this device, `theirs`: the peer's, as reached from here.
struct RawExchange {
  static constexpr uint64_t kWords = 512;  // zero before the first one
  uint64_t* mine = nullptr;
  uint64_t* theirs = nullptr;
  const void* from = nullptr;
  void* to = nullptr;
  uint64_t bytes = 0;
  uint64_t* counters = nullptr;
  uint64_t* wrong = nullptr;
};
Status rawExchangeByWarp(void* stream, const RawExchange& what);
Status rawExchangeByBlocks(void* stream, const RawExchange& what, uint32_t blocks);
// A kernel of `blocks` that stays for so many exchanges after the first `before`, and of one thread
// for each of them that asks it. `request`: 64 bytes of this device, zero before the first one.
Status rawResident(void* stream, const RawExchange& what, uint64_t* request, uint32_t blocks,
                   uint64_t before, uint64_t exchanges);
Status rawExchangeByResident(void* stream, const RawExchange& what, uint64_t* request);

// --- By the proxy
// ---------------------------------------------------------------------------------

// One thread: so many puts with a signal, then as many waits; or by turns.
Status portPuts(void* stream, const PortChannelHandle& channel, uint64_t bytes, uint64_t count,
                bool byTurns, uint64_t* wrong);
// Puts alone.
Status portPush(void* stream, const PortChannelHandle& channel, uint64_t bytes, uint64_t count,
                uint64_t* wrong);

// --- Signals
// --------------------------------------------------------------------------------------

Status portSignals(void* stream, const PortSemaphoreHandle& semaphore, bool begins, uint64_t rounds,
                   uint64_t* wrong);
// `first`: the number before the first round's; numbers grow.
Status rawSignals(void* stream, uint64_t* mine, uint64_t* theirs, bool begins, uint64_t first,
                  uint64_t rounds, uint64_t* wrong);

// --- Requests
// -------------------------------------------------------------------------------------

Status portRequests(void* stream, const PortChannelHandle& channel, uint32_t kind, uint32_t blocks,
                    uint32_t threads, uint64_t each, uint64_t* wrong);
// A ring in memory of the host: 16-byte slots with the lap in the top bits.
struct RawRing {
  static constexpr uint64_t kSlots = 512;
  uint64_t* slots = nullptr;     // of the host
  uint64_t* tail = nullptr;      // of the host
  uint64_t* head = nullptr;      // of this device
  uint64_t* tailSeen = nullptr;  // of this device
};
Status rawRequests(void* stream, const RawRing& ring, uint32_t blocks, uint32_t threads,
                   uint64_t each, uint64_t* wrong);
// Stores `value` to a word of the host.
Status raiseWord(void* stream, uint64_t* word, uint64_t value);

// --- Other work of a GPU
// -------------------------------------------------------------------------

// A product of bf16 matrices by tensor cores on all multiprocessors: `size` x `size`, a multiple of
// 128; the inputs are what is in `a` and `b` (2 bytes each), the result is of floats.
Status multiplyMatrices(void* stream, const void* a, const void* b, float* c, uint32_t size);
// Reads and writes memory as fast as it can. Bytes are a multiple of 16.
Status streamMemory(void* stream, const void* from, void* to, uint64_t bytes);
// Between two places of the stream, in microseconds; waits for it.
Result<double> timeOnGpu(void* stream, const std::function<Status()>& enqueue);

// By the copy engine.
Status rawCopy(void* stream, void* to, const void* from, uint64_t bytes);

}  // namespace peerlane::bench
