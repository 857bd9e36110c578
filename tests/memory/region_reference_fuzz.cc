// SPDX-License-Identifier: Apache-2.0
//
// Region references: what parses can be written and parsed again to the same.
#include <cstdint>
#include <span>

#include "peerlane/memory/region_reference.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace peerlane;
  const auto reference = RegionReference::decode(std::as_bytes(std::span(bytes, size)));
  if (!reference.isOk()) return 0;
  const RegionReference::Encoded written = reference->encode();
  const auto again = RegionReference::decode(written);
  PEERLANE_CHECK(again.isOk() && again->encode() == written);
  PEERLANE_CHECK(again->owner == reference->owner && again->bytes == reference->bytes);
  PEERLANE_CHECK(again->access == reference->access && again->device == reference->device);
  return 0;
}
