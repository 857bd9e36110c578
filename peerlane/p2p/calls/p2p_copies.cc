// SPDX-License-Identifier: Apache-2.0
//
// p2p.h: put and get.
#include <span>
#include <string>
#include <vector>

#include "peerlane/p2p.h"
#include "peerlane/p2p/calls/call_arguments.h"
#include "peerlane/p2p/calls/null_pointers.h"
#include "peerlane/p2p/calls/refused_piece.h"
#include "peerlane/p2p/result_code.h"

namespace peerlane::p2p {
namespace {

// Adds the pieces of one entry of a batch: a contiguous range at one side, pieces at the other.
// `contiguousIsRemote`: the range is at the other side, else at this one.
Answer addEntry(const P2pScatterEntry& entry, bool contiguousIsRemote,
                std::vector<CopyPiece>& pieces) {
  PEERLANE_RETURN_IF_ERROR(findNull(entry.dstBufs, entry.counts, entry.numEl, "dstBufs"));
  if (entry.ddrBuf == nullptr) return nullPointer("ddrBuf");
  std::vector<LocalPiece> parts;
  PEERLANE_RETURN_IF_ERROR(
      addPieces(entry.dstBufs, entry.counts, entry.dataType, entry.numEl, "dstBufs", parts));
  const auto base = reinterpret_cast<uint64_t>(entry.ddrBuf);
  uint64_t offset = 0;
  for (const LocalPiece& part : parts) {
    if (part.bytes > UINT64_MAX - base - offset)
      return Status(Code::kInvalidArgument, "the counts of an entry run past all addresses");
    const uint64_t contiguous = base + offset;
    const auto piece = reinterpret_cast<uint64_t>(part.address);
    pieces.push_back({reinterpret_cast<std::byte*>(contiguousIsRemote ? piece : contiguous),
                      contiguousIsRemote ? contiguous : piece, part.bytes});
    offset += part.bytes;
  }
  return Status::ok();
}

// `nameOf`: says by which name the caller knows the piece of an index.
template <typename NameOf>
Answer copyPieces(Direction direction, std::span<const CopyPiece> pieces, PairCommunicator& pair,
                  aclrtStream stream, const NameOf& nameOf) {
  OperationStream on;
  PEERLANE_RETURN_IF_ERROR(streamOf(stream, pair, on));
  Answer copied = pair.copy(direction, pieces, on);
  if (copied.isOk()) return copied;
  if (const auto refused = refusedPiece(copied.status, direction, pieces, on, pair))
    return copied.withContext(nameOf(*refused));
  const auto two = overlappingPieces(copied.status, direction, pieces);
  if (!two) return copied;
  const auto place = [&](size_t at) {
    const CopyPiece& piece = pieces[at];
    return nameOf(at) + " " + rangeText(destinationOf(piece, direction), piece.bytes);
  };
  return Status(Code::kInvalidArgument, place(two->first) + " and " + place(two->second) +
                                            " overlap, and are written by one call: which bytes "
                                            "stay would be chance");
}

std::string entryName(uint64_t index) {
  return "entries[" + std::to_string(index) + "]";
}

// `isLone`: the only entry is made of the call's own arguments and is in no array of the caller.
HcclResult copyEntries(Direction direction, bool contiguousIsRemote, const P2pScatterEntry* entries,
                       uint32_t batchSize, P2PComm comm, aclrtStream stream, bool isLone = false) {
  return answer([&]() -> Answer {
    const auto pair = findComm(comm);
    if (!pair) return noSuchComm(comm);
    if (batchSize == 0) return Status(Code::kInvalidArgument, "no entries; need at least one");
    if (entries == nullptr) return nullPointer("entries");
    std::vector<CopyPiece> pieces;
    for (uint32_t i = 0; i < batchSize; ++i) {
      Answer added = addEntry(entries[i], contiguousIsRemote, pieces);
      if (added.isOk()) continue;
      return isLone ? added : added.withContext(entryName(i));
    }
    return copyPieces(direction, pieces, *pair, stream, [&](size_t piece) {
      uint32_t entry = 0;
      while (piece >= entries[entry].numEl) piece -= entries[entry++].numEl;
      const std::string name = "dstBufs[" + std::to_string(piece) + "]";
      return isLone ? name : entryName(entry) + ", " + name;
    });
  });
}

HcclResult copyList(Direction direction, const P2pCopyEntry* entries, uint32_t batchSize,
                    P2PComm comm, aclrtStream stream) {
  return answer([&]() -> Answer {
    const auto pair = findComm(comm);
    if (!pair) return noSuchComm(comm);
    if (batchSize == 0) return Status(Code::kInvalidArgument, "no entries; need at least one");
    if (entries == nullptr) return nullPointer("entries");
    std::vector<CopyPiece> pieces;
    pieces.reserve(batchSize);
    for (uint32_t i = 0; i < batchSize; ++i) {
      const P2pCopyEntry& entry = entries[i];
      if (entry.localBuf == nullptr) return nullPointer(entryName(i) + ".localBuf");
      if (entry.remoteBuf == nullptr) return nullPointer(entryName(i) + ".remoteBuf");
      if (entry.bytes == 0)
        return Status(Code::kInvalidArgument, entryName(i) + " has 0 bytes; need at least 1");
      pieces.push_back({static_cast<std::byte*>(entry.localBuf),
                        reinterpret_cast<uint64_t>(entry.remoteBuf), entry.bytes});
    }
    return copyPieces(direction, pieces, *pair, stream, entryName);
  });
}

HcclResult copyOne(Direction direction, void* local, const char* localName, void* remote,
                   const char* remoteName, uint64_t count, HcclDataType type, P2PComm comm,
                   aclrtStream stream) {
  return answer([&]() -> Answer {
    const auto pair = findComm(comm);
    if (!pair) return noSuchComm(comm);
    if (local == nullptr) return nullPointer(localName);
    if (remote == nullptr) return nullPointer(remoteName);
    PEERLANE_ASSIGN(const uint64_t elementBytes, bytesOf(type));
    PEERLANE_ASSIGN(const LocalPiece one, pieceOf(local, count, elementBytes, localName, -1));
    const CopyPiece piece{one.address, reinterpret_cast<uint64_t>(remote), one.bytes};
    OperationStream on;
    PEERLANE_RETURN_IF_ERROR(streamOf(stream, *pair, on));
    return pair->copy(direction, {&piece, 1}, on);
  });
}

}  // namespace
}  // namespace peerlane::p2p

using namespace peerlane;
using namespace peerlane::p2p;

HcclResult P2PGetRemoteHostMem(void* ddrBuf, void* dstBuf, uint64_t count, HcclDataType dataType,
                               P2PComm comm, aclrtStream stream) {
  return copyOne(Direction::kGet, dstBuf, "dstBuf", ddrBuf, "ddrBuf", count, dataType, comm,
                 stream);
}

HcclResult P2PScatterFromRemoteHostMem(void* ddrBuf, void** dstBufs, uint64_t* counts,
                                       HcclDataType dataType, uint32_t numEl, P2PComm comm,
                                       aclrtStream stream) {
  const P2pScatterEntry entry{ddrBuf, dstBufs, counts, dataType, numEl};
  return copyEntries(Direction::kGet, /*contiguousIsRemote=*/true, &entry, 1, comm, stream,
                     /*isLone=*/true);
}

HcclResult P2PScatterBatchFromRemoteHostMem(P2pScatterEntry* entries, uint32_t batchSize,
                                            P2PComm comm, aclrtStream stream) {
  return copyEntries(Direction::kGet, /*contiguousIsRemote=*/true, entries, batchSize, comm,
                     stream);
}

HcclResult P2PScatterBatchFromRemoteHostMemDone(P2PComm comm) {
  return answer([&]() -> Answer {
    if (findComm(comm)) return Status::ok();
    return noSuchComm(comm);
  });
}

HcclResult P2PGetBatch(const P2pCopyEntry* entries, uint32_t batchSize, P2PComm comm,
                       aclrtStream stream) {
  return copyList(Direction::kGet, entries, batchSize, comm, stream);
}

HcclResult P2PPutBatch(const P2pCopyEntry* entries, uint32_t batchSize, P2PComm comm,
                       aclrtStream stream) {
  return copyList(Direction::kPut, entries, batchSize, comm, stream);
}

HcclResult P2PGet(void* remoteBuf, void* localBuf, uint64_t count, HcclDataType dataType,
                  P2PComm comm, aclrtStream stream) {
  return copyOne(Direction::kGet, localBuf, "localBuf", remoteBuf, "remoteBuf", count, dataType,
                 comm, stream);
}

HcclResult P2PPut(void* localBuf, void* remoteBuf, uint64_t count, HcclDataType dataType,
                  P2PComm comm, aclrtStream stream) {
  return copyOne(Direction::kPut, localBuf, "localBuf", remoteBuf, "remoteBuf", count, dataType,
                 comm, stream);
}

HcclResult P2PGatherBatchToRemoteMem(const P2pScatterEntry* entries, uint32_t batchSize,
                                     P2PComm comm, aclrtStream stream) {
  return copyEntries(Direction::kPut, /*contiguousIsRemote=*/true, entries, batchSize, comm,
                     stream);
}

HcclResult P2PScatterBatchToRemoteMem(const P2pScatterEntry* entries, uint32_t batchSize,
                                      P2PComm comm, aclrtStream stream) {
  return copyEntries(Direction::kPut, /*contiguousIsRemote=*/false, entries, batchSize, comm,
                     stream);
}

HcclResult P2PGatherBatchFromRemoteMem(const P2pScatterEntry* entries, uint32_t batchSize,
                                       P2PComm comm, aclrtStream stream) {
  return copyEntries(Direction::kGet, /*contiguousIsRemote=*/false, entries, batchSize, comm,
                     stream);
}
