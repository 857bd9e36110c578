// SPDX-License-Identifier: Apache-2.0
//
// Get kernel: the receiver's side of rendezvous-get. It waits for a word of a ring; words after
// that one in the slot name a region of the sender and a place in it; the kernel copies the bytes
// from there and then stores the words that tell the sender so. One launch or two, as puts
// (put_kernel.h). The sender's kernel (get end) waits for these words and checks whether the
// receiver took or refused the bytes. Any thread may call; the launches go to the caller's current
// device, which must be the stream's. Usable under stream capture.
#pragma once

#include "peerlane/program/kernel/message/put_kernel.h"

namespace peerlane::kernel {

struct GetJob {
  uint64_t cursor = 0;  // as in RingSlotJob, as all words here
  uint64_t* cursorWord = nullptr;
  const uint64_t* abort = nullptr;
  uint64_t* fault = nullptr;
  uint64_t* ended = nullptr;
  uint64_t* completion = nullptr;
  uint64_t completionValue = 0;
  std::byte* to = nullptr;
  uint64_t bytes = 0;
  // The kernel does this in order: wait; if the word `checkAt` bytes after it is not `expected`, or
  // the place reaches outside its region, store the fault word and leave out the copy and `accept`;
  // copy; store `accept`; store `tell`, a release of everything before it and of the reads. It
  // waits for a region that is not in the table until the region appears or the abort word is not
  // 0.
  RingWord wait, accept, tell;
  uint64_t expected = 0;
  RegionTable table;
  PutPlace* place = nullptr;     // this and the next may be null if the message is short
  uint32_t* arrivals = nullptr;  // must hold 0, and does so after the launch; one launch at a time
  uint32_t faultValue = 0;
  uint32_t advance = 0;
  uint16_t checkAt = 0, allocationAt = 0, generationAt = 0, offsetAt = 0;
  uint16_t slots = 0;
};
static_assert(sizeof(GetJob) <= 256, "parameters are copied with every launch");

struct GetLaunch {
  GetJob job;
  uint32_t ctas = 0;  // of a long message; 0: as many as are useful
  bool overlapsEnd = false;
  void* stream = nullptr;  // cudaStream_t
};

struct GetEndJob {
  uint64_t cursor = 0;
  uint64_t* cursorWord = nullptr;
  const uint64_t* abort = nullptr;
  uint64_t* fault = nullptr;
  uint64_t* ended = nullptr;
  uint64_t* completion = nullptr;
  uint64_t completionValue = 0;
  // The kernel does this in order: wait; if `accepted` has not reached its number, store the fault
  // word.
  RingWord wait, accepted;
  uint32_t faultValue = 0;
  uint32_t advance = 0;
  uint32_t slots = 0;
};

struct GetEndLaunch {
  GetEndJob job;
  bool overlapsEnd = false;
  void* stream = nullptr;  // cudaStream_t
};

// Makes the kernels resident on the current device, as loadCopyKernels() does.
Status loadGetKernels();

// Errors: InvalidArgument, System (the launch failed).
Status launchGet(const GetLaunch& launch);
Status launchGetEnd(const GetEndLaunch& launch);

// The checks of a launch that are the same for every device. Errors: InvalidArgument.
Status checkGet(const GetLaunch& launch);
Status checkGetEnd(const GetEndLaunch& launch);

}  // namespace peerlane::kernel
