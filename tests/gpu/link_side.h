// SPDX-License-Identifier: Apache-2.0
//
// LinkSide: one side of two cuda_ipc links for the contract of links: its GPU, memory of one kind
// there, its half of the link, and who touches memory as that GPU does. NearSide is one in this
// process; far_side.h has one in another. Any thread may touch memory, the rest is the test's.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "peerlane/os/cuda.h"
#include "peerlane/transport/transport.h"
#include "tests/contract/link_contract.h"

namespace peerlane::gputest {

// A word is stored or read by a copy that nothing overtakes. Nobody else adds to the word.
class CopyPath : public DataPath {
 public:
  uint64_t load(const std::byte* word) override;
  void store(std::byte* word, uint64_t value, Width width) override;
  void add(std::byte* word, uint64_t value) override;

 private:
  std::mutex mutex_;
};

class LinkSide {
 public:
  virtual ~LinkSide() = default;
  // First of all, once each; then what the other side offered.
  virtual Offer offer() = 0;
  virtual void complete(Offer peerOffer) = 0;

  virtual DataPath& path() = 0;
  virtual LinkMemory allocate(size_t bytes) = 0;
  virtual const LinkTraits& traits() const = 0;
  virtual Result<LinkPart> grant(const RegionRecord& region) = 0;
  // What the chunks of a region of this side travel as; none where it is not in chunks.
  virtual std::vector<VmmHandle> chunksOf(const RegionRecord& region) = 0;
  // Memory of the other side, with all of its chunks where it has some. It is known by its linkKey.
  virtual Result<RemoteMemory> attach(Grant grant, std::vector<VmmHandle> chunks) = 0;
  virtual void detach(uint64_t key) = 0;
};

class NearSide final : public LinkSide {
 public:
  // Its memory is of `kind`: what CudaProvider says of it is checked.
  NearSide(int gpu, MemoryKind kind, const PeerFacts& facts);

  Offer offer() override { return pending_->takeOffer(); }
  void complete(Offer peerOffer) override;
  DataPath& path() override { return path_; }
  LinkMemory allocate(size_t bytes) override;
  const LinkTraits& traits() const override { return link_->traits(); }
  Result<LinkPart> grant(const RegionRecord& region) override;
  std::vector<VmmHandle> chunksOf(const RegionRecord& region) override;
  Result<RemoteMemory> attach(Grant grant, std::vector<VmmHandle> chunks) override;
  void detach(uint64_t key) override;

 private:
  using Gpu = std::shared_ptr<const cuda::PrimaryContext>;
  class Path final : public CopyPath {
   public:
    explicit Path(Gpu gpu) : gpu_(std::move(gpu)) {}
    void copy(std::byte* to, const std::byte* from, size_t bytes) override;

   private:
    const Gpu gpu_;
  };

  const Gpu gpu_;
  const MemoryKind kind_;
  Path path_;
  const Config config_;
  FakeRegions regions_;
  const std::unique_ptr<EventLoop> loop_;
  const std::unique_ptr<ReadinessSet> readiness_;
  const std::unique_ptr<Bell> bell_;
  const std::unique_ptr<Transport> transport_;
  const std::unique_ptr<PendingLink> pending_;
  std::unique_ptr<Link> link_;
  std::map<uint64_t, RemoteMemory> attached_;
  uint64_t lastKey_ = 0;
};

}  // namespace peerlane::gputest
