// SPDX-License-Identifier: Apache-2.0
//
// Chunk sizes of a grant: nothing crashes, what decodes says the same after encoding it again, and
// every chunk has its place.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "peerlane/memory/chunk_runs.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const auto blob = std::as_bytes(std::span(bytes, size));
  const auto runs = peerlane::ChunkRuns::decode(blob);
  if (!runs.isOk()) return 0;
  const auto again = runs->encode();
  if (!std::equal(again.begin(), again.end(), blob.begin(), blob.end())) std::abort();
  for (const uint64_t index : {uint64_t{0}, runs->count() / 2, runs->count() - 1}) {
    const auto place = runs->at(index);
    if (place.bytes == 0 || place.bytes > runs->bytes() - place.offset) std::abort();
    if (runs->indexOf(place.offset) != index) std::abort();
    if (runs->indexOf(place.offset + place.bytes - 1) != index) std::abort();
  }
  return 0;
}
