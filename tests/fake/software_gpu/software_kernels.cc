// SPDX-License-Identifier: Apache-2.0
//
// The library's kernels on the software GPU: one thread does what their headers promise. Compiled
// into the library in place of its .cu files. Where a contract leaves an order open, the less
// likely one is taken; arrivals are checked to be 0, used by one launch at a time, and left so.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "peerlane/program/kernel/copy/copy_kernel.h"
#include "peerlane/program/kernel/launch/word_kernel.h"
#include "peerlane/program/kernel/message/step_job.h"
#include "peerlane/program/kernel/message/step_kernel.h"
#include "peerlane/program/model/op.h"
#include "peerlane/program/words/counter_line.h"
#include "tests/fake/software_gpu/software_kernel.h"
#include "tests/fake/software_gpu/software_region.h"

namespace peerlane::kernel {
namespace {

using softgpu::PollPause;

// --- Copies ---

constexpr uint32_t kMaxThreads = 1024, kMaxCtas = 65535;

uint32_t ctasOf(const CopyLaunch& launch, uint64_t bytes) {
  if (launch.ctas != 0) return launch.ctas;
  const uint64_t perCta = kCopyTileBytes * ((launch.threads == 0 ? 512 : launch.threads) / 32);
  return static_cast<uint32_t>(
      std::clamp<uint64_t>((bytes + perCta - 1) / perCta, 1, softgpu::kMultiprocessors));
}

uint64_t bytesOf(const CopyLaunch& launch) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < launch.pieceCount; ++i) bytes += launch.pieces[i].bytes;
  if (launch.pieceCount != 0) return bytes;
  return launch.list.count != 0 ? launch.list.tiles * kCopyTileBytes
                                : launch.blocks.count * launch.blocks.blockBytes;
}

Status check(const CopyLaunch& launch) {
  if (launch.pieceCount > kInlinePieces)
    return Status(Code::kInvalidArgument, "too many pieces for the launch's parameters");
  if (launch.threads % 32 != 0 || launch.threads > kMaxThreads)
    return Status(Code::kInvalidArgument, "threads per CTA are whole warps, at most 1024");
  if (launch.ctas > kMaxCtas) return Status(Code::kInvalidArgument, "too many CTAs");
  if (launch.tail.storeCount > kMaxWordStores)
    return Status(Code::kInvalidArgument, "too many words to store");
  if (!loadedHere(kCopyKernels))
    return Status(Code::kUnavailable, "the copy kernels are not loaded on the current device");
  if (ctasOf(launch, bytesOf(launch)) > 1 && launch.arrivals == nullptr && !launch.tail.isEmpty())
    return Status(Code::kInvalidArgument, "several CTAs with a tail need a word for arrivals");
  return Status::ok();
}

void copyList(Run& run, const PieceList& list) {
  if (!run.reaches(list.pieces, list.count * sizeof(CopyPiece), "a list")) return;
  uint64_t tiles = 0;
  for (uint64_t i = 0; i < list.count; ++i) {
    tiles += copyTiles(list.pieces[i].bytes);
    if (list.tileEnds[i] != tiles)
      return run.fail("a list whose tiles are not those of its pieces");
  }
  for (uint64_t i = list.count; i-- > 0;)
    run.copy(list.pieces[i].to, list.pieces[i].from, list.pieces[i].bytes);
}

void copyBlocks(Run& run, const BlockList& list, const std::vector<uint32_t>& fromIndex,
                const std::vector<uint32_t>& toIndex) {
  for (uint64_t i = list.count; i-- > 0;) {
    const uint64_t from = list.fromIndex == nullptr ? i : fromIndex[i];
    const uint64_t to = list.toIndex == nullptr ? i : toIndex[i];
    if ((list.fromLimit != 0 && from >= list.fromLimit) ||
        (list.toLimit != 0 && to >= list.toLimit)) {
      if (list.fault != nullptr) run.store(list.fault, list.faultValue);
      continue;
    }
    run.copy(list.to + list.toStride * to, list.from + list.fromStride * from, list.blockBytes);
  }
}

struct CopyWork {
  CopyLaunch launch;  // its pieces are here
  std::vector<CopyPiece> pieces;

  void operator()(int device) const {
    Run run(device, "copy");
    const bool counts = launch.arrivals != nullptr && !launch.tail.isEmpty();
    if (counts) run.enter(launch.arrivals);
    // The first of them are on their way before the wait has ended.
    const bool byBlocks = pieces.empty() && launch.list.count == 0 && launch.blocks.blockBytes != 0;
    const auto indices = [&](const uint32_t* at) {
      const uint64_t count = byBlocks && at != nullptr ? launch.blocks.count : 0;
      if (!run.reaches(at, count * sizeof(uint32_t), "indices")) return std::vector<uint32_t>();
      return count == 0 ? std::vector<uint32_t>() : std::vector<uint32_t>(at, at + count);
    };
    const auto fromIndex = indices(launch.blocks.fromIndex),
               toIndex = indices(launch.blocks.toIndex);
    if (!pieces.empty() || !byBlocks)
      (void)run.reaches(launch.list.tileEnds, launch.list.count * 8, "ends of tiles");
    const bool passed = run.passes(launch.wait);
    if (run.failed()) return;
    if (passed) {
      for (size_t i = pieces.size(); i-- > 0;)
        run.copy(pieces[i].to, pieces[i].from, pieces[i].bytes);
      if (pieces.empty() && launch.list.count != 0)
        copyList(run, launch.list);
      else if (byBlocks)
        copyBlocks(run, launch.blocks, fromIndex, toIndex);
    }
    if (counts) run.leave(launch.arrivals);
    if (!run.failed()) run.performTail(launch.tail, !passed);
  }
};

// --- Steps ---

class StepRun {
 public:
  StepRun(const StepJob& job, uint32_t ctas, int device)
      : job_(job), ctas_(ctas), run_(device, "step") {}

  void operator()() {
    uint32_t* const arrivals = ctas_ > 1 ? job_.arrivals : nullptr;
    run_.enter(arrivals);
    cursor_ = job_.cursorWord == nullptr ? job_.cursor : run_.load(job_.cursorWord);
    bool live = !isEnded(run_, job_);
    for (uint32_t i = 0; i < job_.phaseCount && !run_.failed(); ++i) {
      const StepPhase& phase = job_.phases[i];
      if (live) live = runPhase(phase);
      if (phase.arrival == kNoArrival || run_.failed()) continue;
      const bool isLast = i + 1 == job_.phaseCount;
      if (isLast) run_.leave(arrivals);
      finishPhase(phase, isLast, !live);
    }
    if (job_.phaseCount == 0 || job_.phases[job_.phaseCount - 1].arrival == kNoArrival)
      run_.leave(arrivals);
  }

 private:
  uint64_t addressOf(const StepSpot& spot) const {
    if (spot.slots == 0) return spot.at;
    const auto slots = static_cast<int64_t>(spot.slots);
    int64_t slot = (static_cast<int64_t>(cursor_) + spot.slotDelta) % slots;
    if (slot < 0) slot += slots;
    return spot.at + static_cast<uint64_t>(slot) * spot.strideBytes;
  }
  uint64_t* wordOf(const StepItem& item) const {
    return reinterpret_cast<uint64_t*>(addressOf(item.to));
  }
  uint64_t valueOf(const StepItem& item) const {
    return (item.byCursor ? cursor_ : 0) + item.value;
  }
  void storeFault() {
    if (job_.fault != nullptr) run_.store(job_.fault, job_.faultValue);
  }

  std::vector<std::byte> hold(const StepItem& item) {
    const auto* from = reinterpret_cast<const std::byte*>(addressOf(item.from));
    if (!run_.reaches(from, item.bytes, "a source")) return {};
    std::vector<std::byte> bytes(item.bytes);
    softgpu::moveBytes(bytes.data(), from, item.bytes);
    return bytes;
  }

  bool findPlace() {
    const uint64_t envelope = addressOf(job_.envelope);
    const auto word = [&](uint32_t at) {
      return run_.load(reinterpret_cast<const uint64_t*>(envelope + at));
    };
    return findRegion(run_, job_.table,
                      {word(job_.allocationAt), word(job_.generationAt), word(job_.offsetAt)},
                      job_.abort, late_);
  }

  // False: a late place reaches outside.
  bool copyTilesOf(const StepItem& item) {
    if (item.lateTo || item.lateFrom) {
      const uint64_t at = item.lateTo ? item.to.at : item.from.at;
      const uint64_t other = item.lateTo && item.lateFrom ? item.from.at : at;
      const uint64_t furthest = std::max(at, other);
      if (furthest > late_.room || item.bytes > late_.room - furthest) return false;
    }
    const uint64_t from = (item.lateFrom ? late_.address : 0) + addressOf(item.from);
    const uint64_t to = (item.lateTo ? late_.address : 0) + addressOf(item.to);
    run_.copy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), item.bytes);
    return true;
  }

  bool runPhase(const StepPhase& phase) {
    const StepItem* const waits = job_.items + phase.first;
    const StepItem* const checks = waits + phase.waits;
    const StepItem* const copies = checks + phase.checks;
    std::vector<std::byte> held[kHeldCopies];
    const auto load = [&](bool early) {
      for (uint32_t i = 0; i < phase.copies; ++i)
        if (copies[i].early == early && copies[i].unitBytes != 0) held[i] = hold(copies[i]);
    };
    load(true);
    for (uint32_t i = 0; i < phase.waits; ++i)
      if (!run_.waitWord(wordOf(waits[i]), valueOf(waits[i]), job_.abort)) return false;
    load(false);
    for (uint32_t i = 0; i < phase.checks; ++i)
      if (run_.load(wordOf(checks[i])) != valueOf(checks[i])) {
        faulted_ = true;
        storeFault();
      }
    if (phase.late && !faulted_) {
      if (!late_.isFound && !findPlace()) return false;
      if (late_.isFault) {
        faulted_ = true;
        storeFault();
      }
    }
    for (uint32_t i = 0; i < phase.copies && !faulted_ && !run_.failed(); ++i) {
      if (copies[i].unitBytes != 0) {
        auto* const to = reinterpret_cast<void*>(addressOf(copies[i].to));
        if (run_.reaches(to, copies[i].bytes, "a destination"))
          softgpu::moveBytes(to, held[i].data(), held[i].size());
      } else if (!copyTilesOf(copies[i])) {
        faulted_ = true;
        storeFault();
      }
    }
    return true;
  }

  void finishPhase(const StepPhase& phase, bool isLast, bool released) {
    if (!released) {
      const uint32_t first = phase.first + phase.waits + phase.checks + phase.copies;
      for (uint32_t i = first; i < first + phase.stores; ++i)
        run_.store(wordOf(job_.items[i]), valueOf(job_.items[i]));
    }
    if (!isLast) return;
    if (released) tellReleased(run_, job_);
    // Before the completion: whoever reads that may launch the next one.
    if (job_.completion.word != nullptr)
      run_.store(job_.completion.word, run_.operandNow(job_.completion.value));
    if (job_.cursorWord != nullptr) run_.store(job_.cursorWord, cursor_ + job_.advance);
  }

  const StepJob& job_;
  const uint32_t ctas_;
  Run run_;
  uint64_t cursor_ = 0;
  FoundRegion late_;
  bool faulted_ = false;
};

}  // namespace

Status loadCopyKernels() {
  return load(kCopyKernels);
}
Status loadWordKernels() {
  return load(kWordKernels);
}
Status loadStepKernels() {
  return load(kStepKernels);
}

Status launchCopy(const CopyLaunch& launch) {
  PEERLANE_RETURN_IF_ERROR(check(launch));
  auto work = std::make_shared<CopyWork>();
  work->launch = launch;
  work->pieces.assign(launch.pieces, launch.pieces + launch.pieceCount);
  work->launch.pieces = nullptr;
  return launched(softgpu::launchKernel(launch.stream, [work](int device) { (*work)(device); }),
                  "launching a copy kernel");
}

Status launchWords(const WordLaunch& launch) {
  if (launch.tail.storeCount > kMaxWordStores)
    return Status(Code::kInvalidArgument, "too many words to store");
  if (launch.waitsForLine &&
      (launch.wait.word == nullptr || reinterpret_cast<uintptr_t>(launch.wait.word) % 64 != 0))
    return Status(Code::kInvalidArgument, "a counter line begins on 64 bytes");
  softgpu::loadLazily(loadedHere(kWordKernels).exchange(true));
  const auto work = [launch](int device) {
    Run run(device, "word");
    const bool passed =
        launch.waitsForLine
            ? run.waitLine(launch.wait.word, run.operandNow(launch.wait.atLeast), launch.wait.abort)
            : run.passes(launch.wait);
    if (passed) run.add(launch.addition);
    if (!run.failed()) run.performTail(launch.tail, !passed);
  };
  return launched(softgpu::launchKernel(launch.stream, work), "launching a word kernel");
}

Status launchSteps(const StepLaunch& launch) {
  auto job = std::make_shared<StepJob>();
  StepShape shape;
  PEERLANE_RETURN_IF_ERROR(makeStepJob(launch, *job, shape));
  softgpu::loadLazily(loadedHere(kStepKernels).exchange(true));
  return launched(
      softgpu::launchKernel(
          launch.stream, [job, ctas = shape.ctas](int device) { StepRun(*job, ctas, device)(); }),
      "launching a step kernel");
}

}  // namespace peerlane::kernel
