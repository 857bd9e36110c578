// SPDX-License-Identifier: Apache-2.0
//
// The turn kernel and the put kernel on the software GPU: one thread does what their headers
// promise. Where a contract leaves an order open, the less likely one is taken.
#include <vector>

#include "peerlane/program/kernel/put_kernel.h"
#include "peerlane/program/kernel/turn_kernel.h"
#include "tests/fake/software_gpu/software_kernel.h"
#include "tests/fake/software_gpu/software_region.h"

namespace {

// How deep this thread is in work that a GPU would do, which posts of messages do not pay for.
thread_local unsigned ownWork = 0;
struct OwnWork {
  OwnWork() { ++ownWork; }
  ~OwnWork() { --ownWork; }
};

}  // namespace

// For tests that count.
extern "C" unsigned peerlaneSoftwareWork() {
  return ownWork;
}

namespace peerlane::kernel {
namespace {

struct Slot {
  std::byte* address;
  uint64_t number;
  uint64_t* word(uint32_t at = 0) const { return reinterpret_cast<uint64_t*>(address + at); }
};

Slot slotOf(const TurnWord& word, uint32_t slots, uint64_t cursor) {
  return {word.base + cursor % slots * word.strideBytes,
          cursor + static_cast<uint64_t>(int64_t{word.delta})};
}

class TurnRun {
 public:
  TurnRun(const TurnLaunch& launch, int device)
      : job_(launch.job), copy_(launch.copy), run_(device, "turn") {}

  void operator()() {
    const uint64_t counted = job_.cursorWord == nullptr ? 0 : run_.load(job_.cursorWord);
    const uint64_t cursor = job_.cursor + counted;
    const Slot awaited = slotOf(job_.wait, job_.slots, cursor);
    const Slot told = slotOf(job_.tell, job_.slots, cursor);
    // The source may be read before the wait, and is.
    std::vector<std::byte> held;
    if (copy_ == TurnCopy::kToRing) held = hold(job_.local);
    bool live = run_.waitWord(awaited.word(), awaited.number, job_.abort);
    if (live) {
      const bool wrong =
          job_.checkAt != 0 && run_.load(awaited.word(job_.checkAt)) != job_.expected;
      if (wrong && job_.fault != nullptr) run_.store(job_.fault, job_.faultValue);
      if (copy_ == TurnCopy::kFromRing) held = hold(awaited.address + job_.copyAt);
      if (!wrong && copy_ != TurnCopy::kNone)
        release(copy_ == TurnCopy::kToRing ? told.address + job_.copyAt : job_.local, held);
    }
    if (live && job_.also.base != nullptr) {
      const Slot also = slotOf(job_.also, job_.slots, cursor);
      live = run_.waitWord(also.word(), also.number, job_.abort);
    }
    if (job_.advance != 0) run_.store(job_.cursorWord, counted + job_.advance);
    if (live) {
      for (uint32_t i = job_.valueCount; i-- > 0;)
        run_.store(told.word(job_.valuesAt + 8 * i), job_.values[i]);
      run_.store(told.word(), told.number);
      if (job_.tellAlso.base != nullptr) {
        const Slot also = slotOf(job_.tellAlso, job_.slots, cursor);
        run_.store(also.word(), also.number);
      }
    }
    if (job_.completion != nullptr) run_.store(job_.completion, job_.completionValue);
  }

 private:
  std::vector<std::byte> hold(const std::byte* from) {
    std::vector<std::byte> bytes(job_.bytes);
    if (job_.bytes != 0 && run_.reaches(from, job_.bytes, "a source"))
      softgpu::moveBytes(bytes.data(), from, job_.bytes);
    return bytes;
  }
  void release(std::byte* to, const std::vector<std::byte>& held) {
    if (!held.empty() && run_.reaches(to, held.size(), "a destination"))
      softgpu::moveBytes(to, held.data(), held.size());
  }

  const TurnJob job_;
  const TurnCopy copy_;
  Run run_;
};

// --- Puts ---

uint64_t cursorOf(Run& run, const PutJob& job, uint64_t& counted) {
  counted = job.cursorWord == nullptr ? 0 : run.load(job.cursorWord);
  return job.cursor + counted;
}

PutPlace findPlace(Run& run, const PutJob& job) {
  uint64_t counted = 0;
  const uint64_t cursor = cursorOf(run, job, counted);
  const Slot awaited = slotOf(job.wait, job.slots, cursor);
  if (!run.waitWord(awaited.word(), awaited.number, job.abort)) return {0, PutPlace::kReleased};
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

void copyThere(Run& run, const PutJob& job, const PutPlace& place) {
  uint64_t counted = 0;
  const uint64_t cursor = cursorOf(run, job, counted);
  if (place.verdict == PutPlace::kGo)
    run.copy(reinterpret_cast<void*>(place.address), job.from, job.bytes);
  if (job.advance != 0) run.store(job.cursorWord, counted + job.advance);
  if (place.verdict != PutPlace::kReleased) {
    const Slot told = slotOf(job.tell, job.slots, cursor);
    run.store(told.word(job.valueAt), job.value);
    run.store(told.word(), told.number);
  }
  if (job.completion != nullptr) run.store(job.completion, job.completionValue);
}

Status launchPart(const PutLaunch& launch, void (*part)(Run& run, const PutJob& job)) {
  return launched(softgpu::launchKernel(launch.stream,
                                        [job = launch.job, part](int device) {
                                          Run run(device, "put");
                                          part(run, job);
                                        }),
                  "launching a put kernel");
}

}  // namespace

Status loadTurnKernels() {
  return load(kTurnKernels);
}
Status loadPutKernels() {
  return load(kPutKernels);
}

Status launchTurn(const TurnLaunch& launch) {
  const OwnWork own;
  TurnLaunch shaped = launch;
  uint32_t threads = 0;
  PEERLANE_RETURN_IF_ERROR(shapeTurn(shaped, threads));
  softgpu::loadLazily(loadedHere(kTurnKernels).exchange(true));
  return launched(
      softgpu::launchKernel(launch.stream, [shaped](int device) { TurnRun(shaped, device)(); }),
      "launching a turn kernel");
}

Status launchPut(const PutLaunch& launch) {
  const OwnWork own;
  PEERLANE_RETURN_IF_ERROR(checkPut(launch));
  softgpu::loadLazily(loadedHere(kPutKernels).exchange(true));
  if (launch.job.bytes <= kAlonePutBytes)
    return launchPart(launch, [](Run& run, const PutJob& job) {
      const PutPlace place = findPlace(run, job);
      if (!run.failed()) copyThere(run, job, place);
    });
  PEERLANE_RETURN_IF_ERROR(launchPart(launch, [](Run& run, const PutJob& job) {
    const PutPlace place = findPlace(run, job);
    run.store(&job.place->address, place.address);
    run.store(&job.place->verdict, place.verdict);
  }));
  return launchPart(launch, [](Run& run, const PutJob& job) {
    run.enter(job.arrivals);
    const PutPlace place = {run.load(&job.place->address), run.load(&job.place->verdict)};
    run.leave(job.arrivals);
    copyThere(run, job, place);
  });
}

}  // namespace peerlane::kernel
