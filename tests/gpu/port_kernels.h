// SPDX-License-Identifier: Apache-2.0
//
// What tests of port channels run on a GPU: bodies (port_bodies.h) that call a channel as a thread,
// a warp or a block, launched as kernels (port_kernels.cu); or, with GPUs in software, the same
// bodies by CPU threads that stand for those of the blocks (port_threads.cc), as a piece of work of
// the stream. Whoever launches waits by the stream. Thread-safe; the stream's GPU is the caller's
// current one.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "peerlane/channel/port/port_channel_device.h"

namespace peerlane::gputest {

enum class PortBody : uint32_t {
  kNothing,
  kPingPong,        // data there and back; `polls` instead of waiting
  kExchange,        // both ways at once: signal, wait, putWithSignal, wait
  kExchangeBlocks,  // the same by several blocks, each with a slice; all wait for all
  kStress,          // block 0 sends numbered messages through a ring, block 1 receives such
  kPutAndFlush,     // putWithSignal, flush, and the source is overwritten at once
  kAnswer,          // its other side: waits, looks at the bytes, signals
  kFlushAtOnce,     // all blocks put, flush and overwrite side by side; each signals at the end
  kLookAtSlices,    // its other side
  kGet,             // each side in turns reads what the other one has written
  kSignals,         // signals there and back, by semaphores alone
  kPushes,          // every thread puts its own bytes, as fast as it can
  kLookAtPushes,    // its other side
  kRequests,        // every thread asks the handler, with ascending numbers
  kSelf,            // block 0 is one side, block 1 the other one
  kWait,            // `rounds` signals, with `bound`; stores to `flag` behind each
  kPut,             // stores to `flag`, then putWithSignal alone
  kPutMade,         // the same with the bytes that are in `out` already
  kPackets,         // packets there and back; `in` gets them, the second half of `out` what is in
};

enum class PortForm : uint32_t { kThread, kWarp, kBlock };  // who calls

inline constexpr uint32_t kMostPortBlocks = 64;

// What a body has seen. In memory of the GPU, zero before its first launch.
struct PortNotes {
  uint64_t outcome;      // the largest PortOutcome
  uint64_t wrong;        // words that were not as they should be
  uint64_t nanoseconds;  // of the last launch
  // Rounds that each block has played, over all launches: what it goes on with.
  uint64_t count[kMostPortBlocks];
};

struct PortJob {
  uint32_t side = 0;          // 0 begins
  uint32_t polls = 0;         // not 0: poll() in a loop
  PortChannelHandle channel;  // from `out` to the peer's `in`
  PortChannelHandle second;   // a second semaphore, or what the body says
  std::byte* out = nullptr;
  std::byte* in = nullptr;
  std::byte* otherOut = nullptr;  // of the second side, where one kernel is both
  std::byte* otherIn = nullptr;
  uint64_t at = 0;        // where a game's bytes begin, at both sides
  uint64_t bytes = 0;     // of a message, a multiple of 4
  uint64_t oddBytes = 0;  // of every other one of kStress, where not 0; not more
  uint64_t rounds = 0;
  uint64_t slots = 0;  // messages that the ring of kStress holds
  uint64_t batch = 0;  // and how many are answered at once
  uint64_t bound = port::kForever;
  uint64_t* flag = nullptr;  // of the host; may be null
  PortNotes* notes = nullptr;
};

// Threads of a block.
uint32_t portThreads(PortForm form);
// On the current GPU, before anything spins there: to load a kernel may wait for those that run.
void loadPortKernels(PortForm form);
// One launch of the resident port, `blocks` of its own, beside one block of threads that ask it:
// thread t for `bytes` from `from` + t * bytes to the same place of `to`, again and again, as long
// as it is open. `asked`, one for each thread: how often.
struct ResidentRun {
  port::ResidentJob job{};
  uint32_t blocks = 0;
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  uint64_t bytes = 0;
  uint64_t* signals = nullptr;
  uint64_t* done = nullptr;
  uint64_t* asked = nullptr;
};
inline constexpr uint32_t kResidentAskers = 64;
void launchResidentRun(const ResidentRun& run, cudaStream_t stream);
// A kernel that does nothing, and that nobody has loaded before the first launch.
void launchLate(cudaStream_t stream);
void launchPort(PortBody body, PortForm form, uint32_t blocks, const PortJob& job,
                cudaStream_t stream);

}  // namespace peerlane::gputest
