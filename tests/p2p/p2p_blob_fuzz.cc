// SPDX-License-Identifier: Apache-2.0
//
// Bytes from outside that the C API reads: roots, segments, notes. What decodes, encodes to bytes
// that decode to the same.
#include <algorithm>
#include <cstdlib>

#include "peerlane/p2p/pair/pair_note.h"
#include "peerlane/p2p/process/root_blob.h"
#include "peerlane/p2p/segment/segment_name.h"

using namespace peerlane::p2p;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto* const text = reinterpret_cast<const char*>(data);
  (void)decodeRoot({text, size});
  if (size >= SegmentName::kEncodedBytes) {
    const std::span<const char, SegmentName::kEncodedBytes> bytes(text, SegmentName::kEncodedBytes);
    if (const auto name = SegmentName::decode(bytes); name.isOk()) {
      char again[SegmentName::kEncodedBytes];
      name->encode(again);
      if (!std::equal(std::begin(again), std::end(again), bytes.begin())) std::abort();
    }
  }
  const auto note = PairNote::decode(std::as_bytes(std::span(data, size)));
  if (note.isOk() && !PairNote::decode(note->encode()).isOk()) std::abort();
  return 0;
}
