// SPDX-License-Identifier: Apache-2.0
//
// Call arguments: what pointers, counts and data types of the C API come to, checked. Every refusal
// names the call's argument, its value and what would be accepted.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "peerlane/p2p.h"
#include "peerlane/p2p/pair/pair_communicator.h"
#include "peerlane/p2p/result_code.h"

namespace peerlane::p2p {

inline Answer noSuchComm(P2PComm comm) {
  if (comm == nullptr) return nullPointer("comm");
  return notFound("there is no such communicator (any more); take one from P2PCommInitRootInfo");
}

// Of one element. kInvalidArgument.
Result<uint64_t> bytesOf(HcclDataType type);

// `count` elements of so many bytes at `pointer`; `index` of an array called `name`, or -1.
Result<LocalPiece> pieceOf(void* pointer, uint64_t count, uint64_t elementBytes, const char* name,
                           int64_t index);
Status addPieces(void** pointers, const uint64_t* counts, HcclDataType type, uint64_t pieceCount,
                 const char* name, std::vector<LocalPiece>& pieces);

// The stream of a call on `pair`. HCCL_E_NOT_FOUND.
Answer streamOf(aclrtStream stream, PairCommunicator& pair, OperationStream& found);

}  // namespace peerlane::p2p
