// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/host_part.h"

#include <bit>
#include <utility>

#include "peerlane/core/wire.h"
#include "peerlane/memory/region_table.h"

namespace peerlane {

std::vector<std::byte> HostPart::encode() const {
  std::vector<std::byte> blob;
  ByteWriter writer(blob);
  writer.u64(address);
  writer.u64(fileOffset);
  return blob;
}

Result<HostPart> HostPart::decode(std::span<const std::byte> blob) {
  ByteReader reader(blob);
  HostPart part;
  part.address = reader.u64();
  part.fileOffset = reader.u64();
  PEERLANE_RETURN_IF_ERROR(reader.finish("the host's part of a grant"));
  return part;
}

Result<LinkPart> HostPart::grant(const RegionRecord& region) {
  LinkPart part;
  part.blob = HostPart{.address = std::bit_cast<uint64_t>(region.base),
                       .fileOffset = region.memory.fdOffset}
                  .encode();
  if (region.memory.kind == MemoryKind::kShared) {
    PEERLANE_ASSIGN(part.fd, region.memory.backing.dup());
  }
  return part;
}

}  // namespace peerlane
