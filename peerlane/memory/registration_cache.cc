// SPDX-License-Identifier: Apache-2.0
#include "peerlane/memory/registration_cache.h"

#include <algorithm>
#include <utility>

#include "peerlane/core/counted_list.h"

namespace peerlane {
namespace {

// Ranges may overlap (chunks of one segment), so the nearest one that begins before an address need
// not be the one that holds it. After so many looks it is cheaper to register the range once more.
constexpr int kMostLooks = 16;
// A walk over all entries follows after this part of them was added, so that thousands of
// registrations do not take a walk each.
constexpr size_t kPart = 64;

}  // namespace

RegistrationCache::Record RegistrationCache::look(const std::byte* address, uint64_t bytes,
                                                  Access access) {
  const ReaderLock lock(mutex_);
  auto at = entries_.upper_bound(address);
  for (int looks = 0; looks < kMostLooks && at != entries_.begin(); ++looks) {
    Entry& entry = (--at)->second;
    const Record& record = entry.record;
    const auto offset = static_cast<uint64_t>(address - record->base);
    if (offset > record->bytes || bytes > record->bytes - offset) continue;
    if (!allows(record->access, access) || !record->gate.open() || record->frees.wasFreed())
      continue;
    if (!record->isStillThere(offset, bytes)) continue;
    entry.used.store(clock_.fetch_add(1, std::memory_order_relaxed), std::memory_order_relaxed);
    return record;
  }
  return nullptr;
}

Result<RegistrationCache::Held> RegistrationCache::hold(std::byte* address, uint64_t bytes,
                                                        Access access) {
  PEERLANE_ASSIGN(const auto extent, providers_.extentOf(address, bytes));
  if (extent) {
    if (auto whole = providers_.acquire(extent->base, extent->bytes); whole.isOk()) {
      PEERLANE_ASSIGN(MemoryDescription memory, (*whole)->held().describe());
      if (memory.device.kind != DeviceKind::kHost || access == Access::kLocal)
        return Held{extent->base, extent->bytes, std::move(memory), std::move(*whole)};
    }
  }
  // Only this is the caller's. Of memory of the host peers get no more, because other data of the
  // program is in the same mapping. And another thread may have unmapped a part of the extent since
  // the system named it: free() gives back the end of the heap.
  PEERLANE_ASSIGN(auto part, providers_.acquire(address, bytes));
  PEERLANE_ASSIGN(MemoryDescription memory, part->held().describe());
  return Held{address, bytes, std::move(memory), std::move(part)};
}

// Peers may reach it from now on.
Status RegistrationCache::watchFrees(const RegionRecord& record) {
  if (record.memory.device.kind != DeviceKind::kHost || record.access == Access::kLocal)
    return Status::ok();
  Status watched = record.frees.watch(record);
  if (watched.isOk()) return watched;
  return Status(watched.code() == Code::kUnavailable ? watched.code() : Code::kInvalidArgument,
                "host memory that peers reach has to be registered (Context::registerRegion), "
                "because nobody would see when it is freed: " +
                    std::string(watched.message()));
}

Result<RegistrationCache::Record> RegistrationCache::make(std::byte* address, uint64_t bytes,
                                                          Access access,
                                                          std::vector<Record>& stale) {
  PEERLANE_ASSIGN(Held held, hold(address, bytes, access));
  PEERLANE_ASSIGN(Record record,
                  regions_.begin(held.base, held.bytes, access, std::move(held.memory), nullptr,
                                 std::move(held.acquired)));
  record->isCached.store(true, std::memory_order_relaxed);
  Status watched = watch_(record);
  if (watched.isOk()) watched = watchFrees(*record);
  if (watched.isOk()) watched = regions_.publish(*record);
  if (!watched.isOk()) {
    stale.push_back(std::move(record));
    return watched;
  }
  return record;
}

// Moves to `stale` the entries whose memory was freed or taken back. The rest that nobody uses is
// returned.
std::vector<RegistrationCache::Entries::iterator> RegistrationCache::clearGone(
    std::vector<Record>& stale) {
  Steps::add(entries_.size());
  std::vector<Entries::iterator> idle;
  for (auto at = entries_.begin(); at != entries_.end();) {
    const auto here = at++;
    const Record& record = here->second.record;
    const bool isThere = record->gate.open() && record->isStillThere(0, record->bytes);
    // The cache and the table hold one reference each; any further reference belongs to a
    // transfer, or to a caller that is about to post one. Of a mapping in which something else was
    // freed they have the rest.
    const bool isUsed = record.use_count() > 2 || record->gate.pins() != 0;
    if (!isThere || (!isUsed && record->frees.wasFreed())) {
      stale.push_back(std::move(here->second.record));
      entries_.erase(here);
    } else if (!isUsed) {
      idle.push_back(here);
    }
  }
  return idle;
}

// What is gone leaves, and, of a full cache, what was used least recently.
void RegistrationCache::clear(std::vector<Record>& stale) {
  if (addedSince_ < entries_.size() / kPart) return;
  addedSince_ = 0;
  auto idle = clearGone(stale);
  if (entries_.size() < capacity_) return;
  const size_t tooMany = entries_.size() - capacity_ + std::max<size_t>(capacity_ / kPart, 1);
  const size_t most = std::min(tooMany, idle.size());
  const auto end = idle.begin() + static_cast<ptrdiff_t>(most);
  const auto usedAt = [](const Entries::iterator& each) {
    return each->second.used.load(std::memory_order_relaxed);
  };
  std::ranges::nth_element(idle, end, {}, usedAt);
  for (auto each = idle.begin(); each != end; ++each) {
    stale.push_back(std::move((*each)->second.record));
    entries_.erase(*each);
  }
}

Result<RegistrationCache::Record> RegistrationCache::find(std::byte* address, uint64_t bytes,
                                                          Access access,
                                                          std::vector<Record>& stale) {
  FreeWatch::settle();
  Record known = look(address, bytes, access);
  if (known && known->frees.isWatched()) {
    // Its place may be another mapping by now, while the call that unmapped it has not returned.
    FreeWatch::settleAll();
    if (known->frees.wasFreed()) known = look(address, bytes, access);
  }
  if (known) return known;
  PEERLANE_ASSIGN(Record made, make(address, bytes, access, stale));
  const WriterLock lock(mutex_);
  clear(stale);
  ++addedSince_;
  Entry& entry = entries_
                     .emplace(std::piecewise_construct, std::forward_as_tuple(made->base),
                              std::forward_as_tuple())
                     ->second;
  entry.record = made;
  entry.used.store(clock_.fetch_add(1, std::memory_order_relaxed), std::memory_order_relaxed);
  return made;
}

}  // namespace peerlane
