// SPDX-License-Identifier: Apache-2.0
//
// Put kernel: the sender's side of rendezvous-put. It waits for a word of a ring; words after that
// one in the slot name a region of the receiver and a place in it; the kernel copies the bytes
// there and then stores the words that tell the receiver so. For short messages one block does all
// of it. For longer ones one warp waits, finds the place, and leaves it in the device's memory for
// a second launch of as many blocks as fill the link: so none of those blocks occupies the device
// during the wait, and the place is looked up once. Any thread may call; the launches go to the
// caller's current device, which must be the stream's. Usable under stream capture.
#pragma once

#include "peerlane/program/kernel/message/named_region.h"
#include "peerlane/program/kernel/message/ring_slot_kernel.h"

namespace peerlane::kernel {

// Longer messages are copied by a second launch.
inline constexpr uint64_t kAlonePutBytes = 128 << 10;

// In device memory. The launch that finds the place writes it; the launch that copies reads it.
struct PutPlace {
  enum Verdict : uint64_t { kGo = 1, kFault = 2, kReleased = 3 };
  uint64_t address;
  uint64_t verdict;
};

struct PutJob {
  uint64_t cursor = 0;  // as in RingSlotJob, as all words here
  uint64_t* cursorWord = nullptr;
  const uint64_t* abort = nullptr;
  uint64_t* fault = nullptr;
  uint64_t* ended = nullptr;
  uint64_t* completion = nullptr;
  uint64_t completionValue = 0;
  const std::byte* from = nullptr;
  uint64_t bytes = 0;
  // The kernel does this in order: wait; if the word `checkAt` bytes after it is not `expected`, or
  // the place reaches outside its region, store the fault word and leave out the copy; copy; store
  // `value` at `valueAt` of the slot of `tell`; store `tell`, a release of everything before it. It
  // waits for a region that is not in the table until the region appears or the abort word is not
  // 0.
  RingWord wait, tell;
  uint64_t expected = 0;
  uint64_t value = 0;
  RegionTable table;
  PutPlace* place = nullptr;     // this and the next may be null if the message is short
  uint32_t* arrivals = nullptr;  // must hold 0, and does so after the launch; one launch at a time
  uint32_t faultValue = 0;
  uint32_t advance = 0;
  uint16_t checkAt = 0, allocationAt = 0, generationAt = 0, offsetAt = 0, valueAt = 0;
  uint16_t slots = 0;
};
static_assert(sizeof(PutJob) <= 256, "parameters are copied with every launch");

struct PutLaunch {
  PutJob job;
  uint32_t ctas = 0;  // of a long message; 0: as many as are useful
  bool overlapsEnd = false;
  void* stream = nullptr;  // cudaStream_t
};

// Makes the kernels resident on the current device, as loadCopyKernels() does.
Status loadPutKernels();

// Errors: InvalidArgument, System (the launch failed).
Status launchPut(const PutLaunch& launch);

// The checks of a launch that are the same for every device. Errors: InvalidArgument.
Status checkPut(const PutLaunch& launch);

}  // namespace peerlane::kernel
