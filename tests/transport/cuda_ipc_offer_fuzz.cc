// SPDX-License-Identifier: Apache-2.0
//
// The cuda_ipc offer: what parses is written as the very same bytes.
#include <algorithm>
#include <cstdint>
#include <span>

#include "peerlane/transport/cuda_ipc/cuda_ipc_offer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace peerlane;
  const std::span<const std::byte> input = std::as_bytes(std::span(bytes, size));
  const auto offer = CudaIpcOffer::decode(input);
  if (!offer.isOk()) return 0;
  PEERLANE_CHECK(!offer->gpus.empty() && offer->gpus.size() <= CudaIpcOffer::kMostGpus);
  PEERLANE_CHECK(std::ranges::equal(offer->encode(), input));
  return 0;
}
