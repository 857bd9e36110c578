// SPDX-License-Identifier: Apache-2.0
//
// The offers that two shm transports exchange. docs/wire.md, "shm offer". Plain values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "peerlane/core/status.h"

namespace peerlane {

inline constexpr size_t kShmNonceBytes = 32;
// Bytes of the staging ring in one direction. The system gives pages only when a transfer is first
// staged.
inline constexpr size_t kShmRingBytes = size_t{1} << 20;

struct ShmOffer {
  uint64_t nonceAddress =
      0;  // where `nonce` lies in the offerer's memory: reading it proves that cma works
  std::array<std::byte, kShmNonceBytes> nonce{};
  uint64_t ringBytes =
      0;  // of the ring segment in the offer's descriptors; 0 from the side that offers none

  // The offerer lets this peer read its memory, as far as the offerer can decide that. False: Yama
  // restricts reading, and the offerer has let in another process.
  bool letsRead = true;

  std::vector<std::byte> encode() const;
  static Result<ShmOffer> decode(std::span<const std::byte> blob);
};

}  // namespace peerlane
