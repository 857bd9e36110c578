// SPDX-License-Identifier: Apache-2.0
//
// p2p.h: the calls that send and receive.
#include <string>
#include <vector>

#include "peerlane/p2p.h"
#include "peerlane/p2p/calls/call_arguments.h"
#include "peerlane/p2p/calls/null_pointers.h"
#include "peerlane/p2p/calls/refused_piece.h"
#include "peerlane/p2p/result_code.h"

namespace peerlane::p2p {
namespace {

using Act = Status (PairCommunicator::*)(std::span<const LocalPiece>, const OperationStream&);

// One buffer: the common case, which allocates nothing.
HcclResult transferOne(const char* name, Act act, void* buffer, uint64_t count, HcclDataType type,
                       P2PComm comm, aclrtStream stream) {
  return answer([&]() -> Answer {
    const auto pair = findComm(comm);
    if (!pair) return noSuchComm(comm);
    if (buffer == nullptr) return nullPointer(name);
    PEERLANE_ASSIGN(const uint64_t elementBytes, bytesOf(type));
    PEERLANE_ASSIGN(const LocalPiece piece, pieceOf(buffer, count, elementBytes, name, -1));
    OperationStream on;
    PEERLANE_RETURN_IF_ERROR(streamOf(stream, *pair, on));
    return ((*pair).*act)({&piece, 1}, on);
  });
}

HcclResult transferAll(const char* name, Act act, void** buffers, const uint64_t* counts,
                       HcclDataType type, uint32_t batchSize, P2PComm comm, aclrtStream stream) {
  return answer([&]() -> Answer {
    const auto pair = findComm(comm);
    if (!pair) return noSuchComm(comm);
    PEERLANE_RETURN_IF_ERROR(findNull(buffers, counts, batchSize, name));
    std::vector<LocalPiece> pieces;
    PEERLANE_RETURN_IF_ERROR(addPieces(buffers, counts, type, batchSize, name, pieces));
    OperationStream on;
    PEERLANE_RETURN_IF_ERROR(streamOf(stream, *pair, on));
    Status status = ((*pair).*act)(pieces, on);
    if (status.isOk()) return status;
    const Access access = act == &PairCommunicator::send ? Access::kLocal : Access::kRemoteWrite;
    const auto refused = refusedPiece(status, access, pieces, on, *pair);
    if (!refused) return status;
    return status.withContext(std::string(name) + "[" + std::to_string(*refused) + "]");
  });
}

}  // namespace
}  // namespace peerlane::p2p

using namespace peerlane::p2p;

HcclResult P2PSend(void* sendBuf, uint64_t count, HcclDataType dataType, P2PComm comm,
                   aclrtStream stream) {
  return transferOne("sendBuf", &PairCommunicator::send, sendBuf, count, dataType, comm, stream);
}

HcclResult P2PRecv(void* recvBuf, uint64_t count, HcclDataType dataType, P2PComm comm,
                   aclrtStream stream) {
  return transferOne("recvBuf", &PairCommunicator::recv, recvBuf, count, dataType, comm, stream);
}

HcclResult P2PSendBatch(void** sendBufs, uint64_t* counts, HcclDataType dataType,
                        uint32_t batchSize, P2PComm comm, aclrtStream stream) {
  return transferAll("sendBufs", &PairCommunicator::send, sendBufs, counts, dataType, batchSize,
                     comm, stream);
}

HcclResult P2PRecvBatch(void** recvBuffs, uint64_t* counts, HcclDataType dataType,
                        uint32_t batchSize, P2PComm comm, aclrtStream stream) {
  return transferAll("recvBuffs", &PairCommunicator::recv, recvBuffs, counts, dataType, batchSize,
                     comm, stream);
}
