// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "peerlane/program/kernel/message/list_kernel.h"

namespace peerlane::kernel {
namespace {

Status invalidList(const std::string& what) {
  return Status(Code::kInvalidArgument, "a list kernel " + what);
}

template <class Job>
Status checkRings(const Job& job) {
  if (!isSlotCount(job.slots))
    return invalidList("has rings of 1, 2, 4, 8, 16 or 32 slots, not " + std::to_string(job.slots));
  if (!isRing(job.wait) || !isRing(job.list) || !isRing(job.tell))
    return invalidList("has rings of words and one of places, all on 8 bytes");
  if (job.list.strideBytes < PieceNames::kMostBytes)
    return invalidList("has slots of at least " + std::to_string(PieceNames::kMostBytes) +
                       " bytes for places, not " + std::to_string(job.list.strideBytes));
  if (job.advance != 0 && job.cursorWord == nullptr) return invalidList("advances a cursor word");
  return Status::ok();
}

}  // namespace

Status checkListHead(const ListHeadLaunch& launch) {
  const ListHeadJob& job = launch.job;
  PEERLANE_RETURN_IF_ERROR(checkRings(job));
  if (job.words == nullptr || job.wordCount == 0 ||
      job.wordCount > PieceNames::kMostBytes / sizeof(uint64_t))
    return invalidList("has between 1 and " +
                       std::to_string(PieceNames::kMostBytes / sizeof(uint64_t)) + " words, not " +
                       std::to_string(job.wordCount));
  if ((job.valuesAt[0] | job.valuesAt[1]) % 8 != 0) return invalidList("has words on 8 bytes");
  return Status::ok();
}

Status checkListPut(const ListPutLaunch& launch) {
  const ListPutJob& job = launch.job;
  PEERLANE_RETURN_IF_ERROR(checkRings(job));
  if (job.pieces == nullptr || job.count == 0 || job.count > PieceNames::kMostPieces)
    return invalidList("has between 1 and " + std::to_string(PieceNames::kMostPieces) +
                       " pieces, not " + std::to_string(job.count));
  if (job.room.pieces == nullptr || job.room.tileEnds == nullptr)
    return invalidList("needs room for its pieces");
  if ((job.checkAt | job.regionsAt | job.valueAt) % 8 != 0)
    return invalidList("has words on 8 bytes");
  if (job.table.entries == nullptr || job.table.slots == 0 || job.table.version == 0)
    return invalidList("puts into regions of a table");
  if (job.tiles > kAloneListTiles && (job.place == nullptr || job.arrivals == nullptr))
    return invalidList("needs words in the device's memory for more than one block");
  return Status::ok();
}

}  // namespace peerlane::kernel
