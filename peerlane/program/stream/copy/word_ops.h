// SPDX-License-Identifier: Apache-2.0
//
// Stream memory operations on words: the stream stores a word, or waits for one. Thread-safe: no
// state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "peerlane/core/status.h"
#include "peerlane/program/model/op.h"

namespace peerlane::stream {

// The stream stores the word after a system-wide fence. `stream`: a CUstream.
Status storeWord(void* stream, const void* word, uint64_t value);
Status awaitWord(void* stream, const void* word, uint64_t atLeast);

// One memory operation. Every value in it is a constant.
struct WordOp {
  enum class Kind : uint8_t {
    kWait,     // until the word `at` satisfies `compare` with `value`
    kStore,    // word `at` = value, after a system-wide fence
    kBarrier,  // what the stream wrote before is visible, within `scope`, before what comes after
    kFlush,    // what other devices wrote into the GPU's memory is visible to the stream
  };
  Kind kind = Kind::kStore;
  Width width = Width::k64;
  Compare compare = Compare::kGreaterEqual;
  Scope scope = Scope::kSystem;
  std::byte* at = nullptr;
  uint64_t value = 0;
};

// The driver takes no more in one batch.
inline constexpr size_t kMostWordOps = 255;

// Enqueues the operations in their order, in as few batches as the driver takes. While the stream
// is being captured, each batch becomes a node of its graph. Errors: kNotSupported and kSystem, as
// the driver says; then the batches before the one that failed are enqueued.
Status postWordOps(void* stream, std::span<const WordOp> ops);

}  // namespace peerlane::stream
