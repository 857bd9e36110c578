// SPDX-License-Identifier: Apache-2.0
#include "peerlane/p2p/calls/null_pointers.h"

namespace peerlane::p2p {

Answer findNull(void* const* pointers, const uint64_t* counts, uint64_t pieceCount,
                const char* name) {
  if (pieceCount == 0) return Status::ok();  // addPieces() refuses it, with another code
  if (pointers == nullptr) return nullPointer(name);
  if (counts == nullptr) return nullPointer("counts");
  for (uint64_t i = 0; i < pieceCount; ++i)
    if (pointers[i] == nullptr)
      return nullPointer(std::string(name) + "[" + std::to_string(i) + "]");
  return Status::ok();
}

}  // namespace peerlane::p2p
