// SPDX-License-Identifier: Apache-2.0
//
// What a stream is told about words: to store one, or to wait for one. Thread-safe: no state.
#pragma once

#include <cstdint>

#include "peerlane/core/status.h"

namespace peerlane::stream {

// Behind a fence for the whole system. `stream`: a CUstream.
Status storeWord(void* stream, const void* word, uint64_t value);
Status awaitWord(void* stream, const void* word, uint64_t atLeast);

}  // namespace peerlane::stream
