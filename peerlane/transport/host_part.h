// SPDX-License-Identifier: Apache-2.0
//
// HostPart: the link's own part of a grant of host memory, for links between processes of one host.
// docs/wire.md, "Grants". Plain value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "peerlane/core/status.h"
#include "peerlane/memory/remote_memory.h"

namespace peerlane {

struct RegionRecord;

struct HostPart {
  uint64_t address = 0;     // of the region in the owner's process
  uint64_t fileOffset = 0;  // where the region begins in its descriptor, where it has one

  std::vector<std::byte> encode() const;
  // Errors: kCorrupt (another length).
  static Result<HostPart> decode(std::span<const std::byte> blob);
  // The whole part for `region`, with a descriptor of its own where peers can map the memory.
  // Errors: kUnavailable (no descriptors left).
  static Result<LinkPart> grant(const RegionRecord& region);
};

}  // namespace peerlane
