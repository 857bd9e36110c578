// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/setup/region_pieces.h"

#include <cstring>

namespace peerlane::bench {

Result<std::unique_ptr<RegionPieces>> RegionPieces::create(uint64_t count) {
  PEERLANE_ASSIGN(auto memory, PrivateMemory::create(count * kStride));
  std::memset(memory->data(), 1, count * kStride);
  std::unique_ptr<RegionPieces> pieces(new RegionPieces(count, std::move(memory)));
  pieces->regions_.reserve(count);
  return pieces;
}

Status RegionPieces::registerIn(Context& context) {
  for (uint64_t i = 0; i < count_; ++i) {
    PEERLANE_ASSIGN(Region region,
                    context.registerRegion(data() + i * kStride, kBytes, Access::kRemoteReadWrite));
    regions_.push_back(std::move(region));
  }
  return Status::ok();
}

Status RegionPieces::unregisterAll(Context& context) {
  PEERLANE_RETURN_IF_ERROR(context.unregister(regions_));
  regions_.clear();
  return Status::ok();
}

Status RegionPieces::unregisterEach(Context& context) {
  for (const Region& region : regions_) PEERLANE_RETURN_IF_ERROR(context.unregister(region));
  regions_.clear();
  return Status::ok();
}

}  // namespace peerlane::bench
