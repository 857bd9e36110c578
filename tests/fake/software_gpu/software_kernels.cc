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

}  // namespace

Status loadCopyKernels() {
  return load(kCopyKernels);
}
Status loadWordKernels() {
  return load(kWordKernels);
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

}  // namespace peerlane::kernel
