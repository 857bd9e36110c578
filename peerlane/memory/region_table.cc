// SPDX-License-Identifier: Apache-2.0
#include "peerlane/memory/region_table.h"

#include <algorithm>
#include <bit>

#include "peerlane/core/counted_list.h"
#include "peerlane/os/cuda.h"
#include "peerlane/os/process.h"
#include "peerlane/os/shm_segment.h"

namespace peerlane {
namespace {

std::string regionName(uint64_t allocation) {
  return "region " + std::to_string(allocation);
}

Status revoked(uint64_t allocation) {
  return Status(Code::kRevoked, regionName(allocation) +
                                    ": its memory was taken back by its provider, or freed, "
                                    "before it was unregistered");
}

}  // namespace

Status RegionFrees::watch(const RegionRecord& region) {
  const MutexLock lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  if (refused_.code() == Code::kUnavailable && now - refusedAt_ > std::chrono::seconds(1))
    refused_ = Status::ok();
  if (range_ || !refused_.isOk()) return refused_;
  isLent_ = region.access != Access::kLocal;
  auto begun = FreeWatch::watch(region.base, region.bytes, *this);
  if (begun.isOk()) {
    range_ = std::move(*begun);
    isWatched_.store(true, std::memory_order_release);
    return Status::ok();
  }
  refused_ = begun.status();
  refusedAt_ = now;
  return refused_;
}

void RegionFrees::end() {
  const MutexLock lock(mutex_);
  range_.reset();  // freed() is over, and comes no more
  // Only the first call takes the list's lock: in a forked child a thread of the parent may hold it
  // for ever, and a region that has left the table must be able to end there.
  if (const auto list = std::exchange(list_, nullptr); list && wasFreed()) list->remove(*this);
}

std::shared_ptr<RegionRecord> RegionFrees::record() const {
  return region_.weak_from_this().lock();
}

// The reader's thread: no call takes a lock.
void RegionFrees::freed() noexcept {
  wasFreed_.store(true, std::memory_order_seq_cst);
  if (isLent_) region_.gate.close(Code::kRevoked);
  heavyFence();
  if (list_) list_->add(*this);
}

bool RegionRecord::isStillThere(uint64_t offset, uint64_t length) const {
  if (memory.device.kind != DeviceKind::kCuda) return true;
  if (memory.chunks.empty()) return cuda::identityOf(base) == memory.identity;
  const std::byte* at = base - memory.fdOffset;
  const std::byte* const from = base + offset;
  for (const CudaChunk& chunk : memory.chunks) {
    const std::byte* const next = at + chunk.bytes;
    if (next > from && at < from + length && cuda::identityOf(at) != chunk.identity) return false;
    at = next;
  }
  return true;
}

Status RegionRecord::whyClosed() const {
  return gate.isRevoked()
             ? revoked(allocation)
             : Status(Code::kClosed, regionName(allocation) + " is being unregistered, or was");
}

std::shared_ptr<HeldMemory> RegionRecord::held() const {
  if (auto own = owned.get()) return own;
  const auto lent = acquired.get();
  return lent ? std::shared_ptr<HeldMemory>(lent, &lent->held()) : nullptr;
}

Result<MemoryFacts> RegionRecord::facts() const {
  if (gate.isRevoked()) return whyClosed();
  if (const auto memoryHeld = held()) return memoryHeld->facts();
  return Status(Code::kNotSupported, regionName(allocation) + " is held by no memory provider");
}

Result<ExportedRange> RegionRecord::exportFor(const Importer& importer, uint64_t offset,
                                              uint64_t length) const {
  if (gate.isRevoked()) return whyClosed();
  const auto memoryHeld = held();
  if (memoryHeld == nullptr)
    return Status(Code::kNotSupported, regionName(allocation) + " is held by no memory provider");
  auto made = exportRange(*memoryHeld, bytes, importer, offset, length);
  if (!made.isOk()) return made.status().withContext(regionName(allocation));
  made->address = base + offset;
  return made;
}

RegionTable::~RegionTable() {
  CountedMap<uint64_t, Entry> rest;
  {
    const MutexLock lock(mutex_);
    std::swap(rest, entries_);
  }
  for (const auto& [allocation, entry] : rest) {
    entry.record->exports.end();
    entry.record->frees.end();
  }
}

const char* regionStateName(RegionState state) {
  switch (state) {
    case RegionState::kMaking: return "being registered";
    case RegionState::kLive: return "live";
    case RegionState::kClosing: return "closing";
    case RegionState::kQuarantined: return "quarantined";
    case RegionState::kRevoked: return "revoked";
  }
  return "?";
}

Result<std::shared_ptr<RegionRecord>> RegionTable::add(std::byte* base, uint64_t bytes,
                                                       Access access, MemoryDescription memory,
                                                       std::unique_ptr<Allocation> owned,
                                                       std::unique_ptr<AcquiredMemory> acquired) {
  PEERLANE_ASSIGN(auto record, begin(base, bytes, access, std::move(memory), std::move(owned),
                                     std::move(acquired)));
  PEERLANE_RETURN_IF_ERROR(publish(*record));
  return record;
}

Status RegionTable::publish(const RegionRecord& record) {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(record.allocation);
  if (found == entries_.end() || found->second.state != RegionState::kMaking ||
      record.gate.isRevoked())
    return revoked(record.allocation);
  found->second.state = RegionState::kLive;
  return Status::ok();
}

Result<std::shared_ptr<RegionRecord>> RegionTable::begin(std::byte* base, uint64_t bytes,
                                                         Access access, MemoryDescription memory,
                                                         std::unique_ptr<Allocation> owned,
                                                         std::unique_ptr<AcquiredMemory> acquired) {
  if (allows(access, Access::kRemoteWrite) && !memory.writable)
    return Status(Code::kPermissionDenied,
                  "registering read-only memory with remote write access; use Access::kRemoteRead");
  if (allows(access, Access::kRemoteWrite) && isSealedAgainstWriters(memory.backing.get()))
    return Status(
        Code::kPermissionDenied,
        "registering memory with remote write access that others can map for reading only "
        "(F_SEAL_FUTURE_WRITE), as what Context::allocate makes for "
        "Access::kRemoteRead; allocate it with Access::kRemoteReadWrite");
  auto record = std::make_shared<RegionRecord>();
  record->base = base;
  record->bytes = bytes;
  record->access = access;
  record->memory = std::move(memory);
  record->isOurs = owned != nullptr && record->memory.device.kind == DeviceKind::kHost;
  record->owned = std::move(owned);
  record->acquired = std::move(acquired);
  PEERLANE_RETURN_IF_ERROR(
      fillRandom(std::as_writable_bytes(std::span<uint64_t, 1>(&record->generation, 1))));
  const MutexLock lock(mutex_);
  record->allocation = nextAllocation_++;
  noteOverlaps(*record);
  entries_[record->allocation].record = record;
  bySize_[std::bit_ceil(bytes)].emplace(base, record->allocation);
  return record;
}

Result<std::shared_ptr<RegionRecord>> RegionTable::find(uint64_t allocation,
                                                        uint64_t generation) const {
  FreeWatch::settle();
  const MutexLock lock(mutex_);
  return look(allocation, generation);
}

Result<std::shared_ptr<RegionRecord>> RegionTable::look(uint64_t allocation,
                                                        uint64_t generation) const {
  const auto found = entries_.find(allocation);
  if (found == entries_.end())
    return Status(Code::kInvalidArgument,
                  regionName(allocation) + " is not registered here (any more)");
  if (found->second.record->generation != generation)
    return Status(Code::kInvalidArgument,
                  regionName(allocation) + " is referred to by a stale or forged generation");
  if (found->second.record->gate.isRevoked()) return revoked(allocation);
  if (found->second.state == RegionState::kMaking)
    return Status(Code::kUnavailable, regionName(allocation) + " is being registered");
  if (found->second.state != RegionState::kLive)
    return Status(Code::kClosed, regionName(allocation) + " is being unregistered");
  return found->second.record;
}

Result<PinnedMemory> RegionTable::pin(uint64_t allocation, uint64_t generation, uint64_t offset,
                                      uint64_t bytes, Access wanted) {
  PEERLANE_ASSIGN(std::shared_ptr<RegionRecord> record, find(allocation, generation));
  if (!allows(record->access, wanted))
    return Status(Code::kPermissionDenied, regionName(allocation) + " grants " +
                                               accessName(record->access) + ", not " +
                                               accessName(wanted));
  if (bytes > record->bytes || offset > record->bytes - bytes)
    return Status(Code::kInvalidArgument, regionName(allocation) + ": range [" +
                                              std::to_string(offset) + ", +" +
                                              std::to_string(bytes) + ") lies outside its " +
                                              std::to_string(record->bytes) + " bytes");
  if (!record->gate.enter()) return record->whyClosed();
  return PinnedMemory{record->base + offset, record->isOurs};
}

void RegionTable::unpin(uint64_t allocation) {
  const MutexLock lock(mutex_);
  auto found = entries_.find(allocation);
  PEERLANE_CHECK(found != entries_.end());
  found->second.record->gate.leave();
}

// A transfer is in the gate of its own region. So of regions that share bytes the one in use is its
// own, unless others are in use, too.
std::shared_ptr<const RegionRecord> RegionTable::holding(const std::byte* at,
                                                         uint64_t bytes) const {
  const MutexLock lock(mutex_);
  std::shared_ptr<const RegionRecord> nearest, used;
  uint32_t all = 0, usedOnes = 0;
  const auto isNearer = [](const auto& record, const auto& known) {
    return !known || record->base > known->base;
  };
  for (const auto& [most, byBase] : bySize_)
    for (auto next = byBase.lower_bound({at + 1, 0}); next != byBase.begin();) {
      Steps::add(1);
      const Entry& entry = entries_.at((--next)->second);
      const auto& record = entry.record;
      const auto offset = static_cast<uint64_t>(at - record->base);
      if (offset >= most) break;
      if (entry.state == RegionState::kMaking) continue;
      if (offset > record->bytes || bytes > record->bytes - offset) continue;
      if (!record->isOverlapped.load(std::memory_order_relaxed)) return record;
      ++all;
      if (isNearer(record, nearest)) nearest = record;
      if (record->gate.drained()) continue;
      ++usedOnes;
      if (isNearer(record, used)) used = record;
    }
  if (usedOnes == 1) return used;
  if (all == 1) return nearest;
  // The CPU can copy memory of the host instead.
  if (nearest && nearest->memory.device.kind == DeviceKind::kHost) return nullptr;
  return used ? used : nearest;
}

void RegionTable::noteOverlaps(RegionRecord& added) {
  bool isOverlapped = false;
  for (const auto& [most, byBase] : bySize_)
    for (auto next = byBase.lower_bound({added.base + added.bytes, 0}); next != byBase.begin();) {
      Steps::add(1);
      RegionRecord& other = *entries_.at((--next)->second).record;
      if (other.base + most <= added.base) break;
      if (other.base + other.bytes <= added.base) continue;
      other.isOverlapped.store(true, std::memory_order_relaxed);
      isOverlapped = true;
    }
  if (!isOverlapped) return;
  added.isOverlapped.store(true, std::memory_order_relaxed);
  changes_.fetch_add(1, std::memory_order_release);
}

// In one step: a region that is found live may be taken out by the next thread.
Result<std::shared_ptr<RegionRecord>> RegionTable::lend(uint64_t allocation, uint64_t generation,
                                                        PeerNumber peer) {
  FreeWatch::settle();
  const MutexLock lock(mutex_);
  PEERLANE_ASSIGN(std::shared_ptr<RegionRecord> record, look(allocation, generation));
  if (record->access == Access::kLocal)
    return Status(Code::kPermissionDenied,
                  regionName(allocation) + " is registered for local use only");
  ++entries_.at(allocation).importers[peer];
  return record;
}

void RegionTable::removeImporter(uint64_t allocation, PeerNumber peer) {
  const MutexLock lock(mutex_);
  auto found = entries_.find(allocation);
  if (found == entries_.end()) return;
  auto held = found->second.importers.find(peer);
  if (held != found->second.importers.end() && --held->second == 0)
    found->second.importers.erase(held);
}

void RegionTable::forgetImporter(uint64_t allocation, PeerNumber peer) {
  const MutexLock lock(mutex_);
  if (auto found = entries_.find(allocation); found != entries_.end())
    found->second.importers.erase(peer);
}

void RegionTable::forgetPeer(PeerNumber peer) {
  const MutexLock lock(mutex_);
  for (auto& [allocation, entry] : entries_) entry.importers.erase(peer);
}

std::vector<RegionTable::PeerNumber> RegionTable::importers(uint64_t allocation) const {
  const MutexLock lock(mutex_);
  auto found = entries_.find(allocation);
  if (found == entries_.end()) return {};
  std::vector<PeerNumber> peers;
  for (const auto& [peer, count] : found->second.importers) peers.push_back(peer);
  return peers;
}

bool RegionTable::importsAny(PeerNumber peer) const {
  const MutexLock lock(mutex_);
  return std::any_of(entries_.begin(), entries_.end(),
                     [&](const auto& entry) { return entry.second.importers.contains(peer); });
}

void RegionTable::passImports(PeerNumber from, PeerNumber to) {
  const MutexLock lock(mutex_);
  for (auto& [allocation, entry] : entries_)
    if (entry.importers.erase(from) != 0) entry.importers[to] = 1;
}

std::vector<std::shared_ptr<RegionRecord>> RegionTable::imported() const {
  const MutexLock lock(mutex_);
  std::vector<std::shared_ptr<RegionRecord>> records;
  for (const auto& [allocation, entry] : entries_)
    if (!entry.importers.empty()) records.push_back(entry.record);
  return records;
}

bool RegionTable::isImporter(uint64_t allocation, PeerNumber peer) const {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(allocation);
  return found != entries_.end() && found->second.importers.contains(peer);
}

bool RegionTable::isTakenBack(uint64_t allocation, uint64_t generation) const {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(allocation);
  if (found == entries_.end() || found->second.record->generation != generation) return true;
  return found->second.isTakenBack;
}

void RegionTable::setState(uint64_t allocation, RegionState state) {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(allocation);
  if (found == entries_.end()) return;
  Entry& entry = found->second;
  entry.isTakenBack =
      state == RegionState::kClosing || (entry.isTakenBack && state != RegionState::kLive);
  const bool isKept = state == RegionState::kClosing && entry.state == RegionState::kQuarantined;
  if (!isKept) entry.state = state;
}

std::vector<std::shared_ptr<RegionRecord>> RegionTable::live() const {
  const MutexLock lock(mutex_);
  std::vector<std::shared_ptr<RegionRecord>> records;
  for (const auto& [allocation, entry] : entries_)
    if (entry.state == RegionState::kLive) records.push_back(entry.record);
  return records;
}

std::vector<uint64_t> RegionTable::ticketsOf(const MemoryProvider& provider) const {
  const MutexLock lock(mutex_);
  std::vector<uint64_t> tickets;
  for (const auto& [allocation, entry] : entries_)
    if (const auto memory = entry.record->acquired.get();
        memory && &memory->provider() == &provider)
      tickets.push_back(memory->ticket());
  return tickets;
}

std::shared_ptr<RegionRecord> RegionTable::takeOut(uint64_t allocation) {
  const auto found = entries_.find(allocation);
  if (found == entries_.end()) return nullptr;
  std::shared_ptr<RegionRecord> record = std::move(found->second.record);
  entries_.erase(found);
  bySize_[std::bit_ceil(record->bytes)].erase({record->base, allocation});
  return record;
}

namespace {

void endAll(const std::shared_ptr<RegionRecord>& record) {
  if (!record) return;
  record->exports.end();
  record->frees.end();
}

}  // namespace

void RegionTable::remove(uint64_t allocation) {
  std::shared_ptr<RegionRecord> record;
  {
    const MutexLock lock(mutex_);
    record = takeOut(allocation);
  }
  endAll(record);
}

bool RegionTable::removeUnlessLent(uint64_t allocation) {
  std::shared_ptr<RegionRecord> record;
  {
    const MutexLock lock(mutex_);
    const auto found = entries_.find(allocation);
    if (found == entries_.end() || !found->second.importers.empty()) return false;
    record = takeOut(allocation);
  }
  endAll(record);
  return true;
}

std::vector<RegionView> RegionTable::view() const {
  const MutexLock lock(mutex_);
  std::vector<RegionView> views;
  for (const auto& [allocation, entry] : entries_)
    views.push_back({allocation, entry.record->bytes, entry.state, entry.record->gate.pins(),
                     entry.importers.size(), entry.record->memory.text});
  return views;
}

size_t RegionTable::quarantined() const {
  const MutexLock lock(mutex_);
  size_t count = 0;
  for (const auto& [allocation, entry] : entries_)
    count += entry.state == RegionState::kQuarantined ? 1 : 0;
  return count;
}

}  // namespace peerlane
