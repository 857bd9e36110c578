// SPDX-License-Identifier: Apache-2.0
//
// Null pointers in the lists of a call: HCCL_E_PTR, with the name of the argument and the index of
// the pointer that is NULL. A call looks for them first, because every other check reads through
// the pointers. Plain function; any thread.
#pragma once

#include <cstdint>

#include "peerlane/p2p/result_code.h"

namespace peerlane::p2p {

// `pointers`, the argument `name`: an array of the addresses of `pieceCount` pieces. `counts`: an
// array of as many lengths.
Answer findNull(void* const* pointers, const uint64_t* counts, uint64_t pieceCount,
                const char* name);

}  // namespace peerlane::p2p
