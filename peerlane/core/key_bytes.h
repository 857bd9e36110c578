// SPDX-License-Identifier: Apache-2.0
//
// KeyBytes: the 32 bytes of a secret key. A value; each copy is wiped when it ends.
#pragma once

#include <string.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

namespace peerlane {

class KeyBytes {
 public:
  static constexpr size_t kBytes = 32;

  KeyBytes() = default;  // all zero: no key
  explicit KeyBytes(std::span<const std::byte, kBytes> bytes) {
    std::copy(bytes.begin(), bytes.end(), bytes_.begin());
  }
  KeyBytes(const KeyBytes&) = default;
  KeyBytes& operator=(const KeyBytes&) = default;
  ~KeyBytes() { explicit_bzero(bytes_.data(), kBytes); }

  std::span<const std::byte, kBytes> bytes() const { return bytes_; }
  std::span<std::byte, kBytes> writableBytes() { return bytes_; }

 private:
  std::array<std::byte, kBytes> bytes_{};
};

}  // namespace peerlane
