// SPDX-License-Identifier: Apache-2.0
//
// Stream memory operations on words: the stream stores a word, or waits for one. Thread-safe: no
// state.
#pragma once

#include <cstdint>

#include "peerlane/core/status.h"

namespace peerlane::stream {

// The stream stores the word after a system-wide fence. `stream`: a CUstream.
Status storeWord(void* stream, const void* word, uint64_t value);
Status awaitWord(void* stream, const void* word, uint64_t atLeast);

}  // namespace peerlane::stream
