// SPDX-License-Identifier: Apache-2.0
//
// What kernels of messages have in common on the software GPU: slots of rings, places that a slot
// names (kernel/named_copy_device.h by one thread), and the work that a GPU would do by itself.
#pragma once

#include "peerlane/program/kernel/message/put_kernel.h"
#include "tests/fake/software_gpu/software_kernel.h"
#include "tests/fake/software_gpu/software_region.h"

namespace peerlane::kernel {

// How deep this thread is in work that a GPU would do, which posts of messages do not pay for.
inline thread_local unsigned ownWork = 0;
struct OwnWork {
  OwnWork() { ++ownWork; }
  ~OwnWork() { --ownWork; }
};

struct Slot {
  std::byte* address;
  uint64_t number;
  uint64_t* word(uint32_t at = 0) const { return reinterpret_cast<uint64_t*>(address + at); }
};

inline Slot slotOf(const RingWord& word, uint32_t slots, uint64_t cursor) {
  return {word.base + cursor % slots * word.strideBytes,
          cursor + static_cast<uint64_t>(int64_t{word.delta})};
}

// `Job` is that of a put, a get or a get's end, in all three.
template <class Job>
uint64_t cursorOf(Run& run, const Job& job, uint64_t& counted) {
  counted = job.cursorWord == nullptr ? 0 : run.load(job.cursorWord);
  return job.cursor + counted;
}

template <class Job>
PutPlace findNamed(Run& run, const Job& job) {
  uint64_t counted = 0;
  const uint64_t cursor = cursorOf(run, job, counted);
  const Slot awaited = slotOf(job.wait, job.slots, cursor);
  if (isEnded(run, job) || !run.waitWord(awaited.word(), awaited.number, job.abort))
    return {0, PutPlace::kReleased};
  FoundRegion found;
  bool wrong = job.checkAt != 0 && run.load(awaited.word(job.checkAt)) != job.expected;
  if (!wrong) {
    if (!findRegion(
            run, job.table,
            {run.load(awaited.word(job.allocationAt)), run.load(awaited.word(job.generationAt)),
             run.load(awaited.word(job.offsetAt))},
            job.abort, found))
      return {0, PutPlace::kReleased};
    wrong = found.isFault || job.bytes > found.room;
  }
  if (!wrong) return {found.address, PutPlace::kGo};
  if (job.fault != nullptr) run.store(job.fault, job.faultValue);
  return {0, PutPlace::kFault};
}

// In one part, or a long one in two.
template <class Job>
Status launchNamed(void* stream, const Job& job, const char* name,
                   void (*copyThere)(Run& run, const Job& job, const PutPlace& place)) {
  const auto launch = [&](auto part) {
    return launched(softgpu::launchKernel(stream,
                                          [job, name, copyThere, part](int device) {
                                            Run run(device, name);
                                            part(run, job, copyThere);
                                          }),
                    "launching a kernel of messages");
  };
  if (job.bytes <= kAlonePutBytes)
    return launch([](Run& run, const Job& at, auto copy) {
      const PutPlace place = findNamed(run, at);
      if (!run.failed()) copy(run, at, place);
    });
  PEERLANE_RETURN_IF_ERROR(launch([](Run& run, const Job& at, auto) {
    const PutPlace place = findNamed(run, at);
    run.store(&at.place->address, place.address);
    run.store(&at.place->verdict, place.verdict);
  }));
  return launch([](Run& run, const Job& at, auto copy) {
    run.enter(at.arrivals);
    const PutPlace place = {run.load(&at.place->address), run.load(&at.place->verdict)};
    run.leave(at.arrivals);
    copy(run, at, place);
  });
}

}  // namespace peerlane::kernel
