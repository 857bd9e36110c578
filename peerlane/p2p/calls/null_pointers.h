// SPDX-License-Identifier: Apache-2.0
//
// Null pointers in the lists of a call: HCCL_E_PTR, with the name of the argument and the index of
// what is missing. Looked for before anything else is, which reads through them. Plain functions.
#pragma once

#include <cstdint>

#include "peerlane/p2p/result_code.h"

namespace peerlane::p2p {

// Of `pieceCount` pieces: the array `name` of their addresses, that of their counts, an address.
Answer findNull(void* const* pointers, const uint64_t* counts, uint64_t pieceCount,
                const char* name);

}  // namespace peerlane::p2p
