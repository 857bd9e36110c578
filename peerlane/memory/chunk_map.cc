// SPDX-License-Identifier: Apache-2.0
#include "peerlane/memory/chunk_map.h"

#include <utility>

namespace peerlane {

ChunkMap::ChunkMap(ChunkRuns runs, uint64_t offset, uint64_t bytes,
                   std::unique_ptr<ChunkSpace> space)
    : runs_(std::move(runs)),
      offset_(offset),
      space_(std::move(space)),
      states_(std::make_unique<std::atomic<State>[]>(runs_.count())) {
  PEERLANE_CHECK(bytes > 0 && offset < runs_.bytes() && bytes <= runs_.bytes() - offset);
}

ChunkMap::Range ChunkMap::chunksOf(uint64_t offset, uint64_t bytes) const {
  const uint64_t first = runs_.indexOf(offset_ + offset);
  return {first, runs_.indexOf(offset_ + offset + bytes - 1) - first + 1};
}

bool ChunkMap::covers(uint64_t offset, uint64_t bytes) const {
  if (complete()) return true;
  const Range range = chunksOf(offset, bytes);
  for (uint64_t i = range.first; i < range.first + range.count; ++i)
    if (state(i) != State::kMapped) return false;
  return true;
}

std::vector<ChunkMap::Range> ChunkMap::ask(uint64_t offset, uint64_t bytes) {
  std::vector<Range> wanted;
  const Range range = chunksOf(offset, bytes);
  for (uint64_t i = range.first; i < range.first + range.count; ++i) {
    State expected = State::kMissing;
    if (!states_[i].compare_exchange_strong(expected, State::kAsked, std::memory_order_relaxed))
      continue;
    if (!wanted.empty() && wanted.back().first + wanted.back().count == i)
      ++wanted.back().count;
    else
      wanted.push_back({i, 1});
  }
  return wanted;
}

Status ChunkMap::failure(uint64_t offset, uint64_t bytes) const {
  if (!failed()) return Status::ok();
  const Range range = chunksOf(offset, bytes);
  for (uint64_t i = range.first; i < range.first + range.count; ++i) {
    if (state(i) != State::kFailed) continue;
    const MutexLock lock(mutex_);
    return why_;
  }
  return Status::ok();
}

Status ChunkMap::map(uint64_t first, std::vector<VmmHandle> handles) {
  const Range range{first, handles.size()};
  PEERLANE_CHECK(range.count > 0 && range.count <= runs_.count() &&
                 first <= runs_.count() - range.count);
  std::vector<uint64_t> sizes;
  sizes.reserve(range.count);
  for (uint64_t i = 0; i < range.count; ++i) sizes.push_back(runs_.at(first + i).bytes);
  Status mapped = space_->map(runs_.at(first).offset, sizes, std::move(handles));
  if (!mapped.isOk()) {
    fail(range, mapped);
    return mapped;
  }
  for (uint64_t i = 0; i < range.count; ++i)
    states_[first + i].store(State::kMapped, std::memory_order_release);
  mapped_.fetch_add(range.count, std::memory_order_release);
  return Status::ok();
}

void ChunkMap::fail(Range range, const Status& why) {
  {
    const MutexLock lock(mutex_);
    if (why_.isOk()) why_ = why;
  }
  for (uint64_t i = range.first; i < range.first + range.count; ++i)
    states_[i].store(State::kFailed, std::memory_order_release);
  failed_.store(true, std::memory_order_release);
}

}  // namespace peerlane
