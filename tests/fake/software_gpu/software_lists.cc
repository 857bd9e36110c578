// SPDX-License-Identifier: Apache-2.0
//
// The list kernels on the software GPU: one thread does what their header promises. Pieces and
// words go last first.
#include <vector>

#include "peerlane/program/kernel/message/list_kernel.h"
#include "tests/fake/software_gpu/software_named.h"

namespace peerlane::kernel {
namespace {

void runHead(const ListHeadJob& job, int device) {
  Run run(device, "list head");
  // Early, as a GPU would.
  if (!run.reaches(job.words, job.wordCount * sizeof(uint64_t), "words")) return;
  std::vector<uint64_t> words(job.words, job.words + job.wordCount);
  uint64_t counted = 0;
  const uint64_t cursor = cursorOf(run, job, counted);
  const Slot awaited = slotOf(job.wait, job.slots, cursor);
  const Slot told = slotOf(job.tell, job.slots, cursor);
  const bool live = !isEnded(run, job) && run.waitWord(awaited.word(), awaited.number, job.abort);
  if (job.advance != 0) run.store(job.cursorWord, counted + job.advance);
  if (live) {
    const Slot list = slotOf(job.list, job.slots, cursor);
    for (uint32_t i = job.wordCount; i-- > 0;) run.store(list.word(8 * i), words[i]);
    for (uint32_t i = 2; i-- > 0;) run.store(told.word(job.valuesAt[i]), job.values[i]);
    run.store(told.word(), told.number);
  } else {
    tellReleased(run, job);
  }
  if (job.completion != nullptr) run.store(job.completion, job.completionValue);
}

struct FoundBase {
  uint64_t address, room;
};

// False: somebody has ended it.
bool findBases(Run& run, const ListPutJob& job, const Slot& list, std::vector<FoundBase>& bases) {
  for (uint32_t i = 0; i < bases.size(); ++i) {
    FoundRegion found;
    const uint32_t at = i * PieceNames::kNameBytes;
    if (!findRegion(run, job.table, {run.load(list.word(at)), run.load(list.word(at + 8)), 0},
                    job.abort, found))
      return false;
    bases[i] = {found.address, found.room};
  }
  return true;
}

PutPlace::Verdict findPlaces(Run& run, const ListPutJob& job, uint64_t cursor) {
  const Slot awaited = slotOf(job.wait, job.slots, cursor);
  if (isEnded(run, job) || !run.waitWord(awaited.word(), awaited.number, job.abort))
    return PutPlace::kReleased;
  const uint64_t regions = run.load(awaited.word(job.regionsAt));
  if (run.load(awaited.word(job.checkAt)) != job.expected || regions > PieceNames::kMostRegions)
    return PutPlace::kFault;
  const Slot list = slotOf(job.list, job.slots, cursor);
  std::vector<FoundBase> bases(regions);
  if (!findBases(run, job, list, bases)) return PutPlace::kReleased;
  for (uint32_t i = 0; i < job.count; ++i) {
    const uint64_t place =
        run.load(list.word(static_cast<uint32_t>(regions) * PieceNames::kNameBytes + 8 * i));
    const uint64_t region = PieceNames::regionOf(place), offset = PieceNames::offsetOf(place);
    if (region >= regions || offset > bases[region].room ||
        job.room.pieces[i].bytes > bases[region].room - offset)
      return PutPlace::kFault;
    job.room.pieces[i].to = reinterpret_cast<std::byte*>(bases[region].address + offset);
  }
  return PutPlace::kGo;
}

// The host's part of the room, and then the places.
PutPlace::Verdict fillRoom(Run& run, const ListPutJob& job) {
  if (!run.reaches(job.pieces, job.count * sizeof(LocalPiece), "pieces") ||
      !run.reaches(job.room.pieces, job.count * sizeof(CopyPiece), "room for pieces") ||
      !run.reaches(job.room.tileEnds, job.count * sizeof(uint64_t), "room for ends of tiles"))
    return PutPlace::kReleased;
  for (uint32_t i = 0; i < job.count; ++i) {
    job.room.pieces[i] = {job.pieces[i].from, nullptr, job.pieces[i].bytes};
    job.room.tileEnds[i] = job.pieces[i].tileEnd;
  }
  uint64_t counted = 0;
  const uint64_t cursor = cursorOf(run, job, counted);
  const PutPlace::Verdict verdict = findPlaces(run, job, cursor);
  if (verdict == PutPlace::kFault && job.fault != nullptr) run.store(job.fault, job.faultValue);
  return verdict;
}

void copyPieces(Run& run, const ListPutJob& job, uint64_t verdict) {
  uint64_t counted = 0, tiles = 0;
  const uint64_t cursor = cursorOf(run, job, counted);
  for (uint32_t i = 0; i < job.count; ++i) {
    tiles += copyTiles(job.room.pieces[i].bytes);
    if (job.room.tileEnds[i] != tiles)
      return run.fail("a list whose tiles are not those of its pieces");
  }
  if (tiles != job.tiles) return run.fail("a list of other tiles than it says");
  for (uint32_t i = job.count; i-- > 0 && verdict == PutPlace::kGo;) {
    const CopyPiece& piece = job.room.pieces[i];
    run.copy(piece.to, piece.from, piece.bytes);
  }
  if (job.advance != 0) run.store(job.cursorWord, counted + job.advance);
  if (verdict != PutPlace::kReleased) {
    const Slot told = slotOf(job.tell, job.slots, cursor);
    run.store(told.word(job.valueAt), job.value);
    run.store(told.word(), told.number);
  } else {
    tellReleased(run, job);
  }
  if (job.completion != nullptr) run.store(job.completion, job.completionValue);
}

Status launch(void* stream, const ListPutJob& job, void (*part)(Run& run, const ListPutJob& job)) {
  return launched(softgpu::launchKernel(stream,
                                        [job, part](int device) {
                                          Run run(device, "list");
                                          part(run, job);
                                        }),
                  "launching a list kernel");
}

}  // namespace

Status loadListKernels() {
  return load(kListKernels);
}

Status launchListHead(const ListHeadLaunch& launch) {
  const OwnWork own;
  PEERLANE_RETURN_IF_ERROR(checkListHead(launch));
  softgpu::loadLazily(loadedHere(kListKernels).exchange(true));
  return launched(softgpu::launchKernel(launch.stream,
                                        [job = launch.job](int device) { runHead(job, device); }),
                  "launching a list kernel");
}

// In one part, or a long one in two.
Status launchListPut(const ListPutLaunch& put) {
  const OwnWork own;
  PEERLANE_RETURN_IF_ERROR(checkListPut(put));
  softgpu::loadLazily(loadedHere(kListKernels).exchange(true));
  if (put.job.tiles <= kAloneListTiles)
    return launch(put.stream, put.job, [](Run& run, const ListPutJob& job) {
      const PutPlace::Verdict verdict = fillRoom(run, job);
      if (!run.failed()) copyPieces(run, job, verdict);
    });
  PEERLANE_RETURN_IF_ERROR(launch(put.stream, put.job, [](Run& run, const ListPutJob& job) {
    run.store(&job.place->verdict, fillRoom(run, job));
  }));
  return launch(put.stream, put.job, [](Run& run, const ListPutJob& job) {
    run.enter(job.arrivals);
    const uint64_t verdict = run.load(&job.place->verdict);
    run.leave(job.arrivals);
    if (!run.failed()) copyPieces(run, job, verdict);
  });
}

}  // namespace peerlane::kernel
