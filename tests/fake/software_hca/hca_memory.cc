// SPDX-License-Identifier: Apache-2.0
#include "tests/fake/software_hca/hca_memory.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tests/fake/software_hca/hca_context.h"
#include "tests/fake/software_hca/hca_copy.h"

namespace peerlane::softhca {
namespace {

constexpr unsigned kRights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                             IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
constexpr unsigned kUnderstood = kRights | IBV_ACCESS_ON_DEMAND | IBV_ACCESS_MW_BIND;
constexpr unsigned kRemoteWrites = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
constexpr uint64_t kPage = 4096;

bool isWritable(unsigned access) {
  return (access & (IBV_ACCESS_LOCAL_WRITE | kRemoteWrites)) != 0;
}

// Calls use(piece, its bytes from, message offset) for what [offset, offset + bytes) covers.
template <class Use>
bool forPieces(std::span<const ibv_sge> pieces, uint64_t offset, size_t bytes, Use&& use) {
  size_t done = 0;
  for (const ibv_sge& piece : pieces) {
    if (done == bytes) break;
    if (offset >= piece.length) {
      offset -= piece.length;
      continue;
    }
    const size_t part = std::min<size_t>(piece.length - offset, bytes - done);
    if (!use(piece, piece.addr + offset, part, done)) return false;
    done += part;
    offset = 0;
  }
  return done == bytes;
}

// rxe loses the place in a page of memory on demand.
uint8_t* placeOf(const Region& region, uint64_t at) {
  uint8_t* const place = region.at(at);
  if (!region.isByProcess) return place;
  return std::max(place - reinterpret_cast<uintptr_t>(place) % kPage, region.bytes);
}

}  // namespace

Regions::~Regions() {
  for (const auto& [key, region] : byKey_) delete region;
}

int Regions::check(size_t length, unsigned access) const {
  const Limits& limits = owner_.settings.limits;
  if ((access & ~(kUnderstood | IBV_ACCESS_OPTIONAL_RANGE)) != 0) return EOPNOTSUPP;
  if ((access & kRemoteWrites) != 0 && (access & IBV_ACCESS_LOCAL_WRITE) == 0) return EINVAL;
  if ((access & IBV_ACCESS_ON_DEMAND) != 0 && owner_.settings.onDemand == OnDemand::kNo)
    return EOPNOTSUPP;
  if (length == 0) return EINVAL;
  if (regions_ >= limits.maxRegions) return ENOMEM;
  if ((access & IBV_ACCESS_ON_DEMAND) != 0) return 0;
  if (length > limits.lockedBytes || lockedBytes_ > limits.lockedBytes - length) return ENOMEM;
  return 0;
}

int Regions::add(Domain& domain, void* bytes, size_t length, uint64_t address, unsigned access,
                 Region*& made) {
  if (const int refused = check(length, access)) return refused;
  const bool isPinned = (access & IBV_ACCESS_ON_DEMAND) == 0;
  if (isPinned)
    if (const int refused = touchPages(bytes, length, isWritable(access))) return refused;
  auto* region = new Region;
  region->domain = &domain;
  region->addr = bytes;
  region->bytes = static_cast<uint8_t*>(bytes);
  region->length = length;
  region->address = address;
  region->access = access;
  region->isByProcess = !isPinned && owner_.settings.onDemand == OnDemand::kRxe;
  return enter(region, made);
}

int Regions::addDmabuf(Domain& domain, uint64_t offset, size_t length, uint64_t address, int fd,
                       unsigned access, Region*& made) {
  const int error = owner_.settings.dmabufError;
  if (error != 0 && (error != EINVAL || fd >= 0)) return error;
  struct stat file = {};
  if (fd < 0 || fstat(fd, &file) != 0) return EBADF;
  if (const int refused = check(length, access)) return refused;
  if (!S_ISREG(file.st_mode)) return EINVAL;
  // A GPU in software gives a file whose position is where its buffer begins.
  const off_t begin = lseek(fd, 0, SEEK_CUR);
  if (begin < 0 || begin > file.st_size) return EINVAL;
  const auto size = static_cast<uint64_t>(file.st_size - begin);
  if (offset > size || length > size - offset || offset % kPage != address % kPage) return EINVAL;
  const uint64_t before = offset % kPage;
  const int protection = PROT_READ | (isWritable(access) ? PROT_WRITE : 0);
  void* mapped = mmap(nullptr, before + length, protection, MAP_SHARED, fd,
                      begin + static_cast<off_t>(offset - before));
  if (mapped == MAP_FAILED) return errno;
  auto* region = new Region;
  region->domain = &domain;
  region->mapped = static_cast<uint8_t*>(mapped);
  region->mappedBytes = before + length;
  region->bytes = region->mapped + before;
  region->isMapping = true;
  region->isLate = owner_.settings.isDmabufLate;
  region->length = length;
  region->address = address;
  region->access = access;
  return enter(region, made);
}

uint32_t Regions::nextKey() {
  // Which context, which region, and a part that changes when an index comes again.
  const auto context = static_cast<uint32_t>(owner_.endpoint + 1) << 24;
  for (;;) {
    ++lastIndex_;
    const uint32_t key = context | (lastIndex_ * 0x9e3779u & 0xffffff);
    if (byKey_.find(key) == byKey_.end()) return key;
  }
}

int Regions::enter(Region* region, Region*& made) {
  region->context = region->domain->context;
  region->pd = region->domain;
  region->lkey = region->rkey = nextKey();
  region->handle = region->lkey;
  byKey_.emplace(region->lkey, region);
  lockedBytes_ += region->lockedBytes();
  ++regions_;
  ++region->domain->users;
  made = region;
  return 0;
}

void Regions::revoke(Region* region) {
  byKey_.erase(region->lkey);
}

void Regions::remove(Region* region) {
  placeLate();
  revoke(region);
  lockedBytes_ -= region->lockedBytes();
  --regions_;
  --region->domain->users;
  if (region->isMapping) munmap(region->mapped, region->mappedBytes);
  delete region;
}

Region* Regions::find(const Domain& domain, uint32_t key, uint64_t at, uint64_t bytes,
                      unsigned rights) const {
  const auto found = byKey_.find(key);
  if (found == byKey_.end()) return nullptr;
  Region* region = found->second;
  const bool isGood =
      region->domain == &domain && region->holds(at, bytes) && (region->access & rights) == rights;
  if (!isGood) return nullptr;
  if (!region->isOnDemand() || bytes == 0) return region;
  const uint8_t* const from = region->at(at);
  const bool isWithin = from >= region->bytes && from + bytes <= region->bytes + region->length;
  return isWithin && isMapped(from, bytes) ? region : nullptr;
}

void Regions::place(const Region& region, uint64_t at, const void* from, size_t bytes) const {
  if (owner_.settings.dropsUnmapped && !isMapped(region.at(at), bytes)) return;
  if (region.isLate) {
    const auto* const begin = static_cast<const uint8_t*>(from);
    late_.push_back({region.at(at), {begin, begin + bytes}});
    return;
  }
  placeBytes(placeOf(region, at), from, bytes);
}

void Regions::placeLate() const {
  for (const Late& each : late_) placeBytes(each.to, each.bytes.data(), each.bytes.size());
  late_.clear();
}

void Regions::fetch(const Region& region, uint64_t at, void* to, size_t bytes) const {
  if (region.isLate) placeLate();
  if (owner_.settings.dropsUnmapped && !isMapped(region.at(at), bytes)) {
    memset(to, 0, bytes);
    return;
  }
  seeWords(region.at(at), bytes);
  copyBytes(to, placeOf(region, at), bytes);
}

bool Regions::areGood(const Domain& domain, std::span<const ibv_sge> pieces, bool isWritten) const {
  const unsigned rights = isWritten ? IBV_ACCESS_LOCAL_WRITE : 0;
  return std::all_of(pieces.begin(), pieces.end(), [&](const ibv_sge& piece) {
    return piece.length == 0 || find(domain, piece.lkey, piece.addr, piece.length, rights);
  });
}

bool Regions::scatter(const Domain& domain, std::span<const ibv_sge> pieces, uint64_t offset,
                      const void* from, size_t bytes) const {
  return forPieces(
      pieces, offset, bytes, [&](const ibv_sge& piece, uint64_t at, size_t part, size_t done) {
        const Region* region = find(domain, piece.lkey, at, part, IBV_ACCESS_LOCAL_WRITE);
        if (region == nullptr) return false;
        place(*region, at, static_cast<const uint8_t*>(from) + done, part);
        return true;
      });
}

bool Regions::gather(const Domain& domain, std::span<const ibv_sge> pieces, uint64_t offset,
                     void* to, size_t bytes) const {
  return forPieces(pieces, offset, bytes,
                   [&](const ibv_sge& piece, uint64_t at, size_t part, size_t done) {
                     const Region* region = find(domain, piece.lkey, at, part, 0);
                     if (region == nullptr) return false;
                     fetch(*region, at, static_cast<uint8_t*>(to) + done, part);
                     return true;
                   });
}

}  // namespace peerlane::softhca
