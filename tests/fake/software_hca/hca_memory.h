// SPDX-License-Identifier: Apache-2.0
//
// Protection domains, registered regions and their keys, and the copies that are checked against
// them. Keys differ between contexts, so that one that strays is never good by accident. All under
// the context's lock: when dereg_mr has returned, the engine touches the region no more.
#pragma once

#include <infiniband/verbs.h>

#include <span>
#include <unordered_map>
#include <vector>

namespace peerlane::softhca {

class Context;
struct Settings;

class Domain : public ibv_pd {
 public:
  explicit Domain(ibv_context* of) : ibv_pd{of, 0} {}
  static Domain& of(ibv_pd* domain) { return *static_cast<Domain*>(domain); }
  int users = 0;  // regions, pairs, shared receive queues
};

class Region : public ibv_mr {
 public:
  static Region& of(ibv_mr* region) { return *static_cast<Region*>(region); }
  Domain* domain = nullptr;
  uint64_t address = 0;      // as peers and requests name its begin
  uint8_t* bytes = nullptr;  // where it lies in this process
  unsigned access = 0;
  bool isByProcess = false;  // whatever requests name is taken for an address of this process
  bool isMapping = false;    // of a dma-buf: ours, to be unmapped
  size_t mappedBytes = 0;
  uint8_t* mapped = nullptr;

  bool holds(uint64_t at, uint64_t size) const {
    return at >= address && size <= length && at - address <= length - size;
  }
  uint8_t* at(uint64_t place) const {
    return isByProcess ? reinterpret_cast<uint8_t*>(place) : bytes + (place - address);
  }
  bool isRelaxed() const { return (access & IBV_ACCESS_RELAXED_ORDERING) != 0; }
  bool isOnDemand() const { return (access & IBV_ACCESS_ON_DEMAND) != 0; }
  bool isLate = false;  // what is written is seen after a flush only
  uint64_t lockedBytes() const { return isOnDemand() ? 0 : length; }
};

class Regions {
 public:
  explicit Regions(Context& owner) : owner_(owner) {}
  Regions(const Regions&) = delete;
  ~Regions();

  // 0, or an errno.
  int add(Domain& domain, void* bytes, size_t length, uint64_t address, unsigned access,
          Region*& made);
  int addDmabuf(Domain& domain, uint64_t offset, size_t length, uint64_t address, int fd,
                unsigned access, Region*& made);
  void remove(Region* region);
  // Its key means nothing any more.
  void revoke(Region* region);

  uint32_t size() const { return regions_; }

  // Null: no such key there, or not in this domain, or not these bytes, or no such right, or no
  // memory there that could be had on demand.
  Region* find(const Domain& domain, uint32_t key, uint64_t at, uint64_t bytes,
               unsigned rights) const;

  // As device: between memory of regions and packets. Memory that was unmapped is passed over where
  // the settings say so.
  void place(const Region& region, uint64_t at, const void* from, size_t bytes) const;
  void fetch(const Region& region, uint64_t at, void* to, size_t bytes) const;
  // What was written into late regions is seen from now on.
  void placeLate() const;

  // Bytes [offset, offset + bytes) of a message that is scattered over local pieces. False: a key,
  // a bound or a right is wrong.
  bool areGood(const Domain& domain, std::span<const ibv_sge> pieces, bool isWritten) const;
  bool scatter(const Domain& domain, std::span<const ibv_sge> pieces, uint64_t offset,
               const void* from, size_t bytes) const;
  bool gather(const Domain& domain, std::span<const ibv_sge> pieces, uint64_t offset, void* to,
              size_t bytes) const;

 private:
  int enter(Region* region, Region*& made);
  uint32_t nextKey();
  int check(size_t length, unsigned access) const;

  struct Late {
    uint8_t* to;
    std::vector<uint8_t> bytes;
  };

  Context& owner_;
  mutable std::vector<Late> late_;
  std::unordered_map<uint32_t, Region*> byKey_;
  uint64_t lockedBytes_ = 0;
  uint32_t regions_ = 0;
  uint32_t lastIndex_ = 0;
};

}  // namespace peerlane::softhca
