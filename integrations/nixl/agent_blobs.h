// SPDX-License-Identifier: Apache-2.0
//
// What one agent's back end tells another's through NIXL's metadata: how to connect, and which
// memory there is. Opaque to NIXL; versioned and bounded, because it may come from anywhere. Plain
// values.
//
//   connection info   "PLNX" u8 version u8 'C' u16 length, ticket
//   public data       "PLNX" u8 version u8 'M' u16 length, ticket (of a context with GPUs; empty:
//   the
//                     one of the connection info), 64 bytes region reference (none for 0 bytes)
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "peerlane/core/status.h"
#include "peerlane/memory/region_reference.h"

namespace peerlane::nixl {

// Lengths in what agents tell each other: two bytes, the lower one first. Requires: length < 2^16;
// `bytes` holds at + 2.
void appendLength(std::string& bytes, size_t length);
size_t lengthAt(std::string_view bytes, size_t at);

struct ConnectionInfo {
  std::string ticket{};

  std::string encode() const;
  // kNotSupported naming the version of a later one; kCorrupt.
  static Result<ConnectionInfo> decode(const std::string& bytes);
};

struct PublicData {
  std::string ticket{};
  std::optional<RegionReference::Encoded> reference{};

  std::string encode() const;
  static Result<PublicData> decode(const std::string& bytes);
};

}  // namespace peerlane::nixl
