// SPDX-License-Identifier: Apache-2.0
//
// ContentHash: BLAKE2b with 256 bits over content that comes in pieces. External synchronization
// required.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>

#include "peerlane/core/status.h"

namespace peerlane {

class ContentHash {
 public:
  static constexpr size_t kBytes = 32;
  using Value = std::array<std::byte, kBytes>;

  ContentHash();
  void update(std::span<const std::byte> piece);
  // The hash of everything so far. Call once, last.
  Value finish();

 private:
  alignas(64) std::array<std::byte, 384> state_{};
};

// The hash of a file's content as it is now.
Result<ContentHash::Value> hashOfFile(const std::string& path);

}  // namespace peerlane
