// SPDX-License-Identifier: Apache-2.0
#include "peerlane/memory/chunk_runs.h"

#include <algorithm>
#include <string>

#include "peerlane/core/wire.h"

namespace peerlane {
namespace {

constexpr size_t kRunBytes = 16;

std::string sizeText(uint64_t bytes) {
  constexpr uint64_t kMiB = 1 << 20;
  return bytes % kMiB == 0 ? std::to_string(bytes / kMiB) + " MiB"
                           : std::to_string(bytes) + " bytes";
}

}  // namespace

void ChunkRuns::add(uint64_t bytes) {
  if (runs_.empty() || runs_.back().bytes != bytes) runs_.push_back({bytes, 0, count_, bytes_});
  ++runs_.back().count;
  ++count_;
  bytes_ += bytes;
}

ChunkRuns::Place ChunkRuns::at(uint64_t index) const {
  const auto next =
      std::upper_bound(runs_.begin(), runs_.end(), index,
                       [](uint64_t wanted, const Run& run) { return wanted < run.firstIndex; });
  const Run& run = *std::prev(next);
  return {run.firstOffset + (index - run.firstIndex) * run.bytes, run.bytes};
}

uint64_t ChunkRuns::indexOf(uint64_t offset) const {
  const auto next =
      std::upper_bound(runs_.begin(), runs_.end(), offset,
                       [](uint64_t wanted, const Run& run) { return wanted < run.firstOffset; });
  const Run& run = *std::prev(next);
  return run.firstIndex + (offset - run.firstOffset) / run.bytes;
}

std::string ChunkRuns::text() const {
  uint64_t least = UINT64_MAX;
  uint64_t most = 0;
  for (const Run& run : runs_) {
    least = std::min(least, run.bytes);
    most = std::max(most, run.bytes);
  }
  const std::string sizes =
      least == most ? sizeText(most) : sizeText(least) + " to " + sizeText(most);
  return std::to_string(count_) + " chunks of " + sizes;
}

std::vector<std::byte> ChunkRuns::encode() const {
  PEERLANE_CHECK(fits());
  std::vector<std::byte> blob;
  ByteWriter writer(blob);
  for (const Run& run : runs_) {
    writer.u64(run.bytes);
    writer.u64(run.count);
  }
  return blob;
}

Result<ChunkRuns> ChunkRuns::decode(std::span<const std::byte> blob) {
  const auto corrupt = [](const std::string& what) {
    return Status(Code::kCorrupt, "chunk sizes: " + what);
  };
  if (blob.empty() || blob.size() % kRunBytes != 0 || blob.size() / kRunBytes > kMostRuns)
    return corrupt(std::to_string(blob.size()) + " bytes; 1 to " + std::to_string(kMostRuns) +
                   " runs of " + std::to_string(kRunBytes) + " are accepted");
  ChunkRuns runs;
  ByteReader reader(blob);
  while (reader.remaining() > 0) {
    const uint64_t bytes = reader.u64();
    const uint64_t count = reader.u64();
    if (bytes == 0 || count == 0) return corrupt("a run without chunks or bytes");
    if (count > kMostChunks - runs.count_)
      return corrupt("more than " + std::to_string(kMostChunks) + " chunks");
    uint64_t all = 0;
    uint64_t end = 0;
    if (__builtin_mul_overflow(bytes, count, &all) ||
        __builtin_add_overflow(runs.bytes_, all, &end))
      return corrupt("they are no 64-bit number together");
    runs.runs_.push_back({bytes, count, runs.count_, runs.bytes_});
    runs.count_ += count;
    runs.bytes_ = end;
  }
  PEERLANE_RETURN_IF_ERROR(reader.finish("chunk sizes"));
  return runs;
}

}  // namespace peerlane
