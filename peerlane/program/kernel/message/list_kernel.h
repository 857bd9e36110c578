// SPDX-License-Identifier: Apache-2.0
//
// List kernels: the two sides of a rendezvous message in many pieces. The receiver's kernel (list
// head) writes to the sender the places of the pieces. The sender's kernel waits for that, looks up
// the regions, and makes a list of pieces in the device's memory. The thread blocks then copy that
// list as they copy others: in equal shares, whatever the sizes of the pieces. For a few bytes one
// block does both; else a launch of one block finds the places and a second launch copies, as put
// kernels do (put_kernel.h). Any thread may call; the launches go to the caller's current device,
// which must be the stream's. Usable under stream capture.
#pragma once

#include "peerlane/program/device/piece_names.h"
#include "peerlane/program/kernel/copy/copy_kernel.h"
#include "peerlane/program/kernel/message/put_kernel.h"

namespace peerlane::kernel {

// In pinned host memory; the device reads it once.
struct LocalPiece {
  const std::byte* from;
  uint64_t bytes;
  uint64_t tileEnd;  // as in PieceList
};

// Room for the list of pieces that the sender's kernel makes; one launch at a time uses it.
struct ListTable {
  CopyPiece* pieces = nullptr;
  uint64_t* tileEnds = nullptr;
  bool isFar = false;  // in host memory
  static constexpr uint64_t kPieceBytes = sizeof(CopyPiece) + sizeof(uint64_t);
};

struct ListHeadJob {
  uint64_t cursor = 0;  // as in RingSlotJob, as all words here
  uint64_t* cursorWord = nullptr;
  const uint64_t* abort = nullptr;
  uint64_t* fault = nullptr;
  uint64_t* ended = nullptr;
  uint64_t* completion = nullptr;
  uint64_t completionValue = 0;
  // The kernel does this in order: wait; copy the words to the slot of `list`; store the values at
  // `valuesAt` of the slot of `tell`; store `tell`, a release of everything before it. The words
  // lie in pinned host memory and must be there before the launch, because the kernel reads them
  // before the wait.
  const uint64_t* words = nullptr;
  uint32_t wordCount = 0;
  RingWord wait, list, tell;
  uint64_t values[2] = {};
  uint32_t faultValue = 0;
  uint32_t advance = 0;
  uint16_t valuesAt[2] = {};
  uint16_t slots = 0;
};
static_assert(sizeof(ListHeadJob) <= 192, "parameters are copied with every launch");

struct ListHeadLaunch {
  ListHeadJob job;
  bool overlapsEnd = false;
  void* stream = nullptr;  // cudaStream_t
};

struct ListPutJob {
  uint64_t cursor = 0;
  uint64_t* cursorWord = nullptr;
  const uint64_t* abort = nullptr;
  uint64_t* fault = nullptr;
  uint64_t* ended = nullptr;
  uint64_t* completion = nullptr;
  uint64_t completionValue = 0;
  // As in PutJob, for `count` pieces. Their places are in the slot of `list`; the number of regions
  // that it names is at `regionsAt` of the slot of `wait`. One place outside its region is a fault
  // of the whole message: the kernel copies nothing.
  const LocalPiece* pieces = nullptr;  // as ListHeadJob::words
  ListTable room;
  uint64_t tiles = 0;  // the last of the pieces' tileEnd
  uint32_t count = 0;
  uint32_t faultValue = 0;
  RingWord wait, list, tell;
  uint64_t expected = 0;
  uint64_t value = 0;
  RegionTable table;
  PutPlace* place = nullptr;  // its verdict alone; this and the next may be null as in PutJob
  uint32_t* arrivals = nullptr;
  uint32_t advance = 0;
  uint16_t checkAt = 0, regionsAt = 0, valueAt = 0;
  uint16_t slots = 0;
};
static_assert(sizeof(ListPutJob) <= 288, "parameters are copied with every launch");

struct ListPutLaunch {
  ListPutJob job;
  uint32_t ctas = 0;  // of a long message; 0: as many as are useful
  bool overlapsEnd = false;
  void* stream = nullptr;  // cudaStream_t
};

// Lists of more tiles are copied by a second launch.
inline constexpr uint64_t kAloneListTiles = kAlonePutBytes / kCopyTileBytes;

// Makes the kernels resident on the current device, as loadCopyKernels() does.
Status loadListKernels();

// Errors: InvalidArgument, System (the launch failed).
Status launchListHead(const ListHeadLaunch& launch);
Status launchListPut(const ListPutLaunch& launch);

// The checks of a launch that are the same for every device. Errors: InvalidArgument.
Status checkListHead(const ListHeadLaunch& launch);
Status checkListPut(const ListPutLaunch& launch);

}  // namespace peerlane::kernel
