// SPDX-License-Identifier: Apache-2.0
//
// p2p.h: registered memory, put and get.
#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "peerlane/os/cuda.h"
#include "peerlane/os/topology.h"
#include "peerlane/p2p.h"
#include "peerlane/p2p/calls/call_arguments.h"
#include "peerlane/p2p/calls/null_pointers.h"
#include "peerlane/p2p/calls/refused_piece.h"
#include "peerlane/p2p/process/p2p_process.h"
#include "peerlane/p2p/result_code.h"

namespace peerlane::p2p {
namespace {

using std::chrono::milliseconds;

static_assert(sizeof(P2pSegmentInfo) == SegmentName::kEncodedBytes);

Result<Access> accessOf(P2pSegmentPermissions permissions) {
  switch (permissions) {
    case P2P_SEGMENT_READ_WRITE: return Access::kRemoteReadWrite;
    case P2P_SEGMENT_READ_ONLY: return Access::kRemoteRead;
    case P2P_SEGMENT_WRITE_ONLY: return Access::kRemoteWrite;
  }
  return Status(Code::kInvalidArgument,
                "permissions is " + std::to_string(static_cast<int>(permissions)) +
                    "; accepted: P2P_SEGMENT_READ_WRITE (0), READ_ONLY (1), WRITE_ONLY (2)");
}

Answer registerMemory(void* memory, uint64_t size, P2pSegmentInfo* info,
                      P2pSegmentPermissions permissions, P2pProcess::Gpu gpu) {
  P2pProcess& process = P2pProcess::instance();
  PEERLANE_ASSIGN(const Access access, accessOf(permissions));
  PEERLANE_ASSIGN(const auto context, process.anyContext(gpu));
  PEERLANE_ASSIGN(const SegmentName name,
                  process.segments().add(context, static_cast<std::byte*>(memory), size, access,
                                         gpu ? DeviceKind::kCuda : DeviceKind::kHost));
  name.encode(info->internal);
  return Status::ok();
}

// One entry of a batch: a contiguous range at one side, pieces at the other. `contiguousIsRemote`,
// else it is here.
Answer addEntry(const P2pScatterEntry& entry, bool contiguousIsRemote,
                std::vector<CopyPiece>& pieces) {
  if (Answer null = findNull(entry.dstBufs, entry.counts, entry.numEl, "dstBufs");
      !null.status.isOk())
    return null;
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

// `nameOf`: of the piece of an index, as the caller knows it.
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

// `isLone`: it is the call's own arguments, not an entry of an array.
HcclResult copyEntries(Direction direction, bool contiguousIsRemote, const P2pScatterEntry* entries,
                       uint32_t batchSize, P2PComm comm, aclrtStream stream, bool isLone = false) {
  return answer([&]() -> Answer {
    const auto pair = P2pProcess::instance().find(comm);
    if (!pair) return noSuchComm(comm);
    if (batchSize == 0) return Status(Code::kInvalidArgument, "no entries; need at least one");
    if (entries == nullptr) return nullPointer("entries");
    std::vector<CopyPiece> pieces;
    for (uint32_t i = 0; i < batchSize; ++i) {
      Answer added = addEntry(entries[i], contiguousIsRemote, pieces);
      if (added.status.isOk()) continue;
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
    const auto pair = P2pProcess::instance().find(comm);
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
    const auto pair = P2pProcess::instance().find(comm);
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

// The NUMA node that the current GPU is attached to.
Result<std::optional<int>> nodeOfGpu() {
  const auto gpu = cuda::currentGpu();
  if (!gpu)
    return Status(Code::kInvalidArgument,
                  "numaNode is P2P_NUMA_OF_DEVICE, and this thread uses no GPU");
  PEERLANE_ASSIGN(const auto gpus, cuda::gpus());
  PEERLANE_ASSIGN(const TopologyReport topology, loadTopology());
  for (const TopologyDevice& device : topology.devices)
    if (device.busId == gpus[static_cast<size_t>(*gpu)].busId && device.numaNode >= 0)
      return std::optional(device.numaNode);
  return std::optional<int>();  // a machine that does not tell has one node
}

}  // namespace
}  // namespace peerlane::p2p

using namespace peerlane;
using namespace peerlane::p2p;

HcclResult P2PRegisterHostMem(void* hostBuf, uint64_t size, P2pSegmentInfo* segmentInfo,
                              P2pSegmentPermissions permissions) {
  return answer([&]() -> Answer {
    if (hostBuf == nullptr) return nullPointer("hostBuf");
    if (segmentInfo == nullptr) return nullPointer("segmentInfo");
    return registerMemory(hostBuf, size, segmentInfo, permissions, std::nullopt);
  });
}

HcclResult P2PRegisterDeviceMem(void* devBuf, uint64_t size, P2pSegmentInfo* segmentInfo,
                                P2pSegmentPermissions permissions) {
  return answer([&]() -> Answer {
    if (devBuf == nullptr) return nullPointer("devBuf");
    if (segmentInfo == nullptr) return nullPointer("segmentInfo");
    const auto gpu = cuda::gpuOf(devBuf);
    if (!gpu) PEERLANE_RETURN_IF_ERROR(cuda::available());
    if (!gpu)
      return Status(Code::kInvalidArgument,
                    "devBuf is not memory of a GPU; register it by P2PRegisterHostMem");
    return registerMemory(devBuf, size, segmentInfo, permissions, gpu);
  });
}

HcclResult P2PUnregisterMem(const P2pSegmentInfo* segmentInfo, uint32_t timeoutMs) {
  return answer([&]() -> Answer {
    if (segmentInfo == nullptr) return nullPointer("segmentInfo");
    PEERLANE_ASSIGN(const SegmentName name, SegmentName::decode(segmentInfo->internal));
    const auto gone = P2pProcess::instance().segments().remove(name, milliseconds(timeoutMs));
    if (!gone) return notFound("the segment is not registered by this process (any more)");
    return afterWaiting(*gone, milliseconds(timeoutMs),
                        "other processes did not let go of " + rangeText(name.address, name.bytes));
  });
}

HcclResult P2PImportHostSegment(P2pSegmentInfo segmentInfo) {
  return answer([&]() -> Answer {
    PEERLANE_ASSIGN(const SegmentName name, SegmentName::decode(segmentInfo.internal));
    return P2pProcess::instance().importSegment(name);
  });
}

HcclResult P2PUnimportSegment(P2pSegmentInfo segmentInfo) {
  return answer([&]() -> Answer {
    PEERLANE_ASSIGN(const SegmentName name, SegmentName::decode(segmentInfo.internal));
    if (P2pProcess::instance().unimportSegment(name)) return Status::ok();
    return notFound("the segment was not imported by this process");
  });
}

HcclResult P2PAllocHostMem(void** hostBuf, uint64_t size, int numaNode) {
  return answer([&]() -> Answer {
    if (hostBuf == nullptr) return nullPointer("hostBuf");
    if (numaNode < P2P_NUMA_OF_DEVICE)
      return Status(Code::kInvalidArgument,
                    "numaNode is " + std::to_string(numaNode) +
                        "; accepted: the number of a node, P2P_NUMA_ANY (-1), "
                        "P2P_NUMA_OF_DEVICE (-2)");
    std::optional<int> node;
    if (numaNode >= 0) node = numaNode;
    if (numaNode == P2P_NUMA_OF_DEVICE) {
      PEERLANE_ASSIGN(node, nodeOfGpu());
    }
    PEERLANE_ASSIGN(*hostBuf, P2pProcess::instance().allocate(size, node));
    return Status::ok();
  });
}

HcclResult P2PFreeHostMem(void* hostBuf) {
  return answer([&]() -> Answer {
    if (hostBuf == nullptr) return nullPointer("hostBuf");
    if (auto freed = P2pProcess::instance().free(hostBuf)) return *freed;
    return notFound("the memory is not of P2PAllocHostMem, or was freed before");
  });
}

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
    if (P2pProcess::instance().find(comm)) return Status::ok();
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
