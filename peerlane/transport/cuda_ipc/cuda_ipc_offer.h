// SPDX-License-Identifier: Apache-2.0
//
// The offers that two cuda_ipc transports exchange. docs/wire.md, "Bringing up cuda_ipc". Plain
// values, free of CUDA's headers and part of every build.
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

  // The GPUs that the context was made for, by UUID, because their numbers differ from process to
  // process.
  std::vector<Uuid> gpus;
  uint64_t pidNamespace = 0;  // the inode of the sender's; 0: unknown
  // Present where the two processes may be in different PID namespaces: the other side tries legacy
  // handles with it.
  std::optional<LegacyProbe> probe;

  // Requires: 1 to kMostGpus GPUs.
  std::vector<std::byte> encode() const;
  // Errors: kNotSupported (another version, naming both; no GPU or more than kMostGpus), kCorrupt
  // (too short, too long).
  static Result<CudaIpcOffer> decode(std::span<const std::byte> blob);
};

}  // namespace peerlane
