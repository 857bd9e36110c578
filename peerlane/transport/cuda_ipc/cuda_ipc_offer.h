// SPDX-License-Identifier: Apache-2.0
//
// What two cuda_ipc transports tell each other. docs/wire.md, "Bringing up cuda_ipc". Plain values,
// free of CUDA's headers and there in every build.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "peerlane/core/status.h"
#include "peerlane/memory/cuda/legacy_probe.h"

namespace peerlane {

struct CudaIpcOffer {
  static constexpr size_t kMostGpus = 64;
  using Uuid = std::array<uint8_t, 16>;  // as the driver gives it

  // Of the GPUs that the context was made for: their numbers differ from process to process.
  std::vector<Uuid> gpus;
  uint64_t pidNamespace = 0;  // the inode of the sender's; 0: unknown
  // Where the two may be in different ones: what the other side tries legacy handles with.
  std::optional<LegacyProbe> probe;

  // Requires: 1 to kMostGpus GPUs.
  std::vector<std::byte> encode() const;
  // Errors: kNotSupported (another version, naming both; no GPU or more than kMostGpus), kCorrupt
  // (too short, too long).
  static Result<CudaIpcOffer> decode(std::span<const std::byte> blob);
};

}  // namespace peerlane
