// SPDX-License-Identifier: Apache-2.0
#include "tests/fake/fake_regions.h"

#include <string>

namespace peerlane {

RegionGrant FakeRegions::add(std::span<std::byte> memory, Access access) {
  const MutexLock lock(mutex_);
  const uint64_t allocation = next_++;
  regions_[allocation] = {.memory = memory, .access = access};
  RegionGrant grant;
  grant.allocation = allocation;
  grant.generation = 1;
  grant.bytes = memory.size();
  grant.access = access;
  return grant;
}

void FakeRegions::renew(uint64_t allocation) {
  const MutexLock lock(mutex_);
  ++regions_.at(allocation).generation;
}

void FakeRegions::refuse(uint64_t allocation, Code why) {
  const MutexLock lock(mutex_);
  regions_.at(allocation).refusal = why;
}

void FakeRegions::giveToProgram(uint64_t allocation) {
  const MutexLock lock(mutex_);
  regions_.at(allocation).isOurs = false;
}

void FakeRegions::hold(std::shared_ptr<const RegionRecord> record) {
  const MutexLock lock(mutex_);
  held_.push_back(std::move(record));
}

std::shared_ptr<const RegionRecord> FakeRegions::holding(const std::byte* at,
                                                         uint64_t bytes) const {
  const MutexLock lock(mutex_);
  for (const auto& record : held_)
    if (at >= record->base && at + bytes <= record->base + record->bytes) return record;
  return nullptr;
}

uint64_t FakeRegions::pins() const {
  const MutexLock lock(mutex_);
  uint64_t sum = 0;
  for (const auto& [allocation, region] : regions_) sum += region.pins;
  return sum;
}

uint64_t FakeRegions::pinsEver() const {
  const MutexLock lock(mutex_);
  return pinsEver_;
}

Result<PinnedMemory> FakeRegions::pin(uint64_t allocation, uint64_t generation, uint64_t offset,
                                      uint64_t bytes, Access wanted) {
  const MutexLock lock(mutex_);
  const auto found = regions_.find(allocation);
  if (found == regions_.end())
    return Status(Code::kInvalidArgument, "no region " + std::to_string(allocation));
  Region& region = found->second;
  if (region.generation != generation)
    return Status(Code::kInvalidArgument, "generation " + std::to_string(generation) +
                                              "; the region has " +
                                              std::to_string(region.generation));
  if (region.refusal != Code::kOk) return Status(region.refusal, "the region is taken back");
  if (!allows(region.access, wanted))
    return Status(Code::kPermissionDenied, std::string("wants ") + accessName(wanted) +
                                               "; granted " + accessName(region.access));
  const uint64_t size = region.memory.size();
  if (bytes == 0 || offset > size || bytes > size - offset)
    return Status(Code::kInvalidArgument, "range [" + std::to_string(offset) + ", +" +
                                              std::to_string(bytes) + "); the region has " +
                                              std::to_string(size) + " bytes");
  ++region.pins;
  ++pinsEver_;
  return PinnedMemory{region.memory.data() + offset, region.isOurs};
}

void FakeRegions::unpin(uint64_t allocation) {
  const MutexLock lock(mutex_);
  Region& region = regions_.at(allocation);
  PEERLANE_CHECK(region.pins > 0);
  --region.pins;
}

}  // namespace peerlane
