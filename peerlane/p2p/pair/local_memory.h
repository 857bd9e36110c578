// SPDX-License-Identifier: Apache-2.0
//
// LocalMemory: memory of this side that a message or a copy names by its address: finds the region
// that holds it, and checks that it is there. Thread-safe. Owner: PairCommunicator.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "peerlane/os/mappings/adopted_mapping.h"
#include "peerlane/p2p/segment/segment_registry.h"
#include "peerlane/session/context/context.h"

namespace peerlane::p2p {

struct LocalPiece {
  std::byte* address = nullptr;
  uint64_t bytes = 0;
};

// Meaningless for a piece that is not within the region.
inline uint64_t offsetIn(const Region& region, const LocalPiece& piece) {
  return static_cast<uint64_t>(piece.address - region.data());
}
bool isWithin(const Region& region, const LocalPiece& piece);

class LocalMemory {
 public:
  // `segments` outlives it.
  LocalMemory(std::shared_ptr<Context> context, SegmentRegistry& segments);

  // A region that holds the piece; registers its allocation if need be. `forGpu`: a GPU will reach
  // it. kInvalidArgument (no memory, or host memory on a stream of CUDA that is not registered),
  // kPermissionDenied, and others of Context::regionOf().
  Result<Region> region(const LocalPiece& piece, Access access, bool forGpu);
  // The region of a segment of host memory that holds the piece (SegmentRegistry::hostRegion).
  std::optional<Region> hostSegment(const LocalPiece& piece, Access access);
  // kInvalidArgument: this process may not read the piece, or not write it. A copy would end the
  // process by a signal then, wherever it is done, also in another thread. Memory that is unmapped
  // after it was found to be there is not noticed.
  Status checkTouch(const LocalPiece& piece, Touch touch);

 private:
  const std::shared_ptr<Context> context_;
  SegmentRegistry& segments_;
  // Hashes of the pieces that checkTouch() has found to be there, so that memory in use over and
  // over is looked at once. Each word stands for itself, so relaxed is enough.
  std::array<std::atomic<uint64_t>, 64> checked_{};
};

}  // namespace peerlane::p2p
