// SPDX-License-Identifier: Apache-2.0
//
// What links read of a grant: what parses is written as the very same bytes.
#include <algorithm>
#include <cstdint>
#include <span>

#include "peerlane/transport/cuda_ipc/cuda_part.h"
#include "peerlane/transport/host_part.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace peerlane;
  const std::span<const std::byte> input = std::as_bytes(std::span(bytes, size));
  if (const auto part = HostPart::decode(input); part.isOk())
    PEERLANE_CHECK(std::ranges::equal(part->encode(), input));
  if (const auto part = CudaPart::decode(input); part.isOk()) {
    PEERLANE_CHECK(part->handle.size() <= CudaPart::kMostHandleBytes);
    PEERLANE_CHECK(std::ranges::equal(part->encode(), input));
  }
  return 0;
}
