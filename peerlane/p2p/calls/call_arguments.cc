// SPDX-License-Identifier: Apache-2.0
#include "peerlane/p2p/calls/call_arguments.h"

#include "peerlane/p2p/process/p2p_process.h"

namespace peerlane::p2p {
namespace {

std::string indexed(const char* name, int64_t index) {
  return index < 0 ? std::string(name) : std::string(name) + "[" + std::to_string(index) + "]";
}

}  // namespace

std::shared_ptr<PairCommunicator> findComm(P2PComm comm) {
  return P2pProcess::instance().communicators().find(comm);
}

Result<uint64_t> bytesOf(HcclDataType type) {
  switch (type) {
    case HCCL_DATA_TYPE_INT8:
    case HCCL_DATA_TYPE_UINT8:
    case HCCL_DATA_TYPE_HIF8:
    case HCCL_DATA_TYPE_FP8E4M3:
    case HCCL_DATA_TYPE_FP8E5M2:
    case HCCL_DATA_TYPE_FP8E8M0: return uint64_t{1};
    case HCCL_DATA_TYPE_INT16:
    case HCCL_DATA_TYPE_UINT16:
    case HCCL_DATA_TYPE_FP16:
    case HCCL_DATA_TYPE_BFP16: return uint64_t{2};
    case HCCL_DATA_TYPE_INT32:
    case HCCL_DATA_TYPE_UINT32:
    case HCCL_DATA_TYPE_FP32: return uint64_t{4};
    case HCCL_DATA_TYPE_INT64:
    case HCCL_DATA_TYPE_UINT64:
    case HCCL_DATA_TYPE_FP64: return uint64_t{8};
    case HCCL_DATA_TYPE_INT128: return uint64_t{16};
    case HCCL_DATA_TYPE_RESERVED: break;
  }
  return Status(Code::kInvalidArgument, "dataType is " + std::to_string(static_cast<int>(type)) +
                                            "; accepted: HCCL_DATA_TYPE_INT8 (0) to INT128 (12), "
                                            "HIF8 (14) to FP8E8M0 (17)");
}

Result<LocalPiece> pieceOf(void* pointer, uint64_t count, uint64_t elementBytes, const char* name,
                           int64_t index) {
  if (pointer == nullptr) return Status(Code::kInvalidArgument, indexed(name, index) + " is NULL");
  if (count == 0 || count > UINT64_MAX / elementBytes)
    return Status(Code::kInvalidArgument, indexed(index < 0 ? "count" : "counts", index) + " is " +
                                              std::to_string(count) + "; accepted: 1 to " +
                                              std::to_string(UINT64_MAX / elementBytes));
  return LocalPiece{static_cast<std::byte*>(pointer), count * elementBytes};
}

Status addPieces(void** pointers, const uint64_t* counts, HcclDataType type, uint64_t pieceCount,
                 const char* name, std::vector<LocalPiece>& pieces) {
  PEERLANE_ASSIGN(const uint64_t elementBytes, bytesOf(type));
  if (pieceCount == 0)
    return Status(Code::kInvalidArgument, std::string("no ") + name + "; need at least one");
  if (pointers == nullptr) return Status(Code::kInvalidArgument, std::string(name) + " is NULL");
  if (counts == nullptr) return Status(Code::kInvalidArgument, "counts is NULL");
  pieces.reserve(pieces.size() + pieceCount);
  for (uint64_t i = 0; i < pieceCount; ++i) {
    PEERLANE_ASSIGN(const LocalPiece piece,
                    pieceOf(pointers[i], counts[i], elementBytes, name, static_cast<int64_t>(i)));
    pieces.push_back(piece);
  }
  return Status::ok();
}

Answer streamOf(aclrtStream stream, PairCommunicator& pair, OperationStream& found) {
  found.host = P2pProcess::instance().streams().find(stream);
  if (found.host) return Status::ok();
  if (HostStreams::isOne(stream))
    return notFound("the stream was destroyed (P2PHostStreamDestroy); make another one");
  if (pair.hasGpu()) {
    found.device = DeviceStream::cuda(stream);
    return Status::ok();
  }
  if (stream != nullptr)
    return notFound(
        "the stream is none of P2PHostStreamCreate (any more), and this communicator has no GPU: "
        "choose one before P2PGetRootInfo and P2PCommInitRootInfo, pass a host stream, or NULL");
  PEERLANE_ASSIGN(found.host, pair.ownQueue());
  found.isOwn = true;
  return Status::ok();
}

}  // namespace peerlane::p2p
