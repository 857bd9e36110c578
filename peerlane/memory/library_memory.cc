// SPDX-License-Identifier: Apache-2.0
#include "peerlane/memory/library_memory.h"

#include <utility>

#include "peerlane/memory/host_provider.h"

namespace peerlane {

Result<std::shared_ptr<RegionRecord>> makeLibraryMemory(RegionTable& regions, uint64_t bytes) {
  HostProvider host;
  PEERLANE_ASSIGN(
      auto memory,
      host.allocate(bytes, {.device = {}, .hugePages = HugePages::kOff, .numaNode = std::nullopt}));
  std::byte* const base = memory->data();
  PEERLANE_ASSIGN(MemoryDescription description, memory->describe());
  return regions.add(base, bytes, Access::kRemoteReadWrite, std::move(description),
                     std::move(memory));
}

}  // namespace peerlane
