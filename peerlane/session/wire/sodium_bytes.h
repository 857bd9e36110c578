// SPDX-License-Identifier: Apache-2.0
//
// Bytes as libsodium takes them.
#pragma once

#include <cstddef>

namespace peerlane {

inline unsigned char* raw(std::byte* bytes) {
  return reinterpret_cast<unsigned char*>(bytes);
}
inline const unsigned char* raw(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

}  // namespace peerlane
