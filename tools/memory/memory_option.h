// SPDX-License-Identifier: Apache-2.0
//
// The --memory option of send and recv: how much staging memory one side may use. Any thread.
#pragma once

#include <cstdint>
#include <string>

#include "peerlane/core/text.h"

namespace peerlane {

inline constexpr const char* kDefaultRing = "32MiB";
inline constexpr uint64_t kSmallestRing = 64 << 10;

// kInvalidArgument below 64 KiB and above 64 GiB.
inline Result<uint64_t> readRingBytes(const std::string& text) {
  const auto bytes = parseByteSize(text);
  if (bytes.isOk() && *bytes >= kSmallestRing && *bytes <= (64ull << 30)) return *bytes;
  return Status(Code::kInvalidArgument, "--memory " + peerlane::quoted(text) +
                                            "; accepted: 64KiB to 64GiB, such as 512K or 32MiB");
}

}  // namespace peerlane
