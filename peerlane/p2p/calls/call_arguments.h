// SPDX-License-Identifier: Apache-2.0
//
// Call arguments: communicators, pointers, counts, data types and streams of the C API, checked and
// turned into what the parts of a communicator take. Every refusal names the argument of the call,
// its value and what would be accepted. Plain functions; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "peerlane/p2p.h"
#include "peerlane/p2p/pair/pair_communicator.h"
#include "peerlane/p2p/result_code.h"

namespace peerlane::p2p {

// Null: noSuchComm() is the answer.
std::shared_ptr<PairCommunicator> findComm(P2PComm comm);
inline Answer noSuchComm(P2PComm comm) {
  if (comm == nullptr) return nullPointer("comm");
  return notFound("there is no such communicator (any more); take one from P2PCommInitRootInfo");
}

// The bytes of one element. kInvalidArgument: not a type.
Result<uint64_t> bytesOf(HcclDataType type);

// `count` elements of `elementBytes` each at `pointer`. `name`: of the argument; `index`: of the
// pointer in it, or -1 if the argument is no array.
Result<LocalPiece> pieceOf(void* pointer, uint64_t count, uint64_t elementBytes, const char* name,
                           int64_t index);
Status addPieces(void** pointers, const uint64_t* counts, HcclDataType type, uint64_t pieceCount,
                 const char* name, std::vector<LocalPiece>& pieces);

// The stream of a call on `pair`. HCCL_E_NOT_FOUND: a host stream that was destroyed, or a stream
// of CUDA where the communicator has no GPU.
Answer streamOf(aclrtStream stream, PairCommunicator& pair, OperationStream& found);

}  // namespace peerlane::p2p
