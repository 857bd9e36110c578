// SPDX-License-Identifier: Apache-2.0
#include "peerlane/p2p/pair/local_memory.h"

#include <string>
#include <utility>

namespace peerlane::p2p {

bool isWithin(const Region& region, const LocalPiece& piece) {
  const uint64_t offset = offsetIn(region, piece);
  return offset <= region.bytes() && piece.bytes <= region.bytes() - offset;
}

LocalMemory::LocalMemory(std::shared_ptr<Context> context, SegmentRegistry& segments)
    : context_(std::move(context)), segments_(segments) {}

std::optional<Region> LocalMemory::hostSegment(const LocalPiece& piece, Access access) {
  return segments_.hostRegion(piece.address, piece.bytes, access, context_);
}

Result<Region> LocalMemory::region(const LocalPiece& piece, Access access, bool forGpu) {
  if (auto own = hostSegment(piece, access)) {
    if (allows(own->access(), access)) return *own;
    return Status(Code::kPermissionDenied,
                  "the host memory to receive into is registered without the right to write "
                  "(P2P_SEGMENT_READ_ONLY)");
  }
  auto region = context_->regionOf(piece.address, piece.bytes, access);
  const bool isHost = region.isOk() ? region->device().kind == DeviceKind::kHost
                                    : region.status().code() == Code::kInvalidArgument;
  if (!isHost || !forGpu) return region;
  return Status(Code::kInvalidArgument,
                "host memory on a stream of CUDA has to be registered (P2PRegisterHostMem): it is "
                "pinned for the GPU" +
                    (region.isOk() ? "" : "; " + std::string(region.status().message())));
}

Status LocalMemory::checkTouch(const LocalPiece& piece, Touch touch) {
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15, kOther = 0xc2b2ae3d27d4eb4f;
  const uint64_t address = reinterpret_cast<uint64_t>(piece.address);
  uint64_t hash =
      (address * kOdd) ^ ((piece.bytes * 2 + (touch == Touch::kWrite ? 1 : 0)) * kOther);
  hash |= 1;  // 0 stands for none
  std::atomic<uint64_t>& known = checked_[hash >> 58];
  if (known.load(std::memory_order_relaxed) == hash) return Status::ok();
  PEERLANE_RETURN_IF_ERROR(checkTouchable(piece.address, piece.bytes, touch));
  known.store(hash, std::memory_order_relaxed);
  return Status::ok();
}

}  // namespace peerlane::p2p
