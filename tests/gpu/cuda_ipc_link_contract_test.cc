// SPDX-License-Identifier: Apache-2.0
//
// The contract of all links, held by the one between GPUs: it maps everything, performs nothing,
// and leaves the rights to the initiator. With memory of each kind that it carries, by the
// addresses of one process, by what travels between two, and between two.
#include <bit>

#include "peerlane/core/mutex.h"
#include "peerlane/memory/device_pin.h"
#include "peerlane/memory/gpu_list.h"
#include "peerlane/os/process.h"
#include "peerlane/transport/cuda_ipc/cuda_part.h"
#include "tests/gpu/far_process.h"
#include "tests/gpu/far_side.h"
#include "tests/gpu/link_side.h"

namespace peerlane::gputest {
namespace {

// Which memory, and how far the two sides are from each other.
enum class Distance { kOneProcess, kAsIfBetweenTwo, kBetweenTwo };
struct Tried {
  MemoryKind kind;
  Distance distance;
};

// One side's half as the contract sees it. Whoever lets go of what was attached detaches it, as
// sessions do, before its owner frees it.
class SideLink final : public Link {
 public:
  SideLink(LinkSide& mine, bool asksForChunks) : mine_(mine), asksForChunks_(asksForChunks) {}

  const LinkTraits& traits() const override { return mine_.traits(); }
  Result<LinkPart> grant(const RegionRecord& region) override {
    const MutexLock lock(mutex_);
    chunks_[region.allocation] = mine_.chunksOf(region);
    return mine_.grant(region);
  }
  // The chunks of a region that was granted here last.
  std::vector<VmmHandle> takeChunks(uint64_t allocation) {
    const MutexLock lock(mutex_);
    return std::exchange(chunks_[allocation], {});
  }
  void setOther(SideLink& other) { other_ = &other; }
  Result<RemoteMemory> attach(Grant grant) override {
    std::vector<VmmHandle> chunks;
    if (asksForChunks_) chunks = other_->takeChunks(grant.region.allocation);
    PEERLANE_ASSIGN(RemoteMemory memory, mine_.attach(std::move(grant), std::move(chunks)));
    memory.hold =
        std::shared_ptr<PinSlot>(new PinSlot, [&side = mine_, key = memory.linkKey](PinSlot* slot) {
          delete slot;
          side.detach(key);
        });
    return memory;
  }
  void detach(RemoteMemory& memory) override {
    memory.mapped = nullptr;
    memory.hold.reset();
  }
  bool poll() override { return false; }
  Status health() const override { return Status::ok(); }
  void close(Code /*code*/) override {}
  Served serve(AgentWork& work) override {
    work.code = Code::kInternal;  // everything it attaches is mapped
    return Served::kDone;
  }

 private:
  LinkSide& mine_;
  const bool asksForChunks_;
  SideLink* other_ = nullptr;
  Mutex mutex_;
  std::map<uint64_t, std::vector<VmmHandle>> chunks_ PEERLANE_GUARDED_BY(mutex_);  // by allocation
};

class CudaIpcPair final : public LinkPair {
 public:
  CudaIpcPair(const Tried& tried, int gpus)
      : process_(ProcessHandle::open(peerOf(tried)).value()),
        near_(0, tried.kind, factsOf(tried, true)),
        other_(makeOther(tried, gpus > 1 ? 1 : 0)),
        first_(near_, tried.distance != Distance::kOneProcess),
        second_(*other_, tried.distance != Distance::kOneProcess) {
    first_.setOther(second_);
    second_.setOther(first_);
    Offer mine = near_.offer();
    near_.complete(other_->offer());
    other_->complete(std::move(mine));
  }

  Link& link(int side) override { return side == 0 ? first_ : second_; }
  FakeRegions& regions(int side) override { return regions_[side]; }
  LinkMemory allocate(int side, size_t bytes) override { return this->side(side).allocate(bytes); }
  DataPath& dataPath(int side) override { return this->side(side).path(); }

 private:
  static pid_t peerOf(const Tried& tried) {
    return tried.distance == Distance::kBetweenTwo ? FarProcess::instance().pid() : getpid();
  }
  PeerFacts factsOf(const Tried& tried, bool initiator) const {
    PeerFacts facts;
    facts.unixSocket = true;
    facts.sameProcess = tried.distance == Distance::kOneProcess;
    facts.initiator = initiator;
    facts.credentials.pid = peerOf(tried);
    facts.pidFd = process_.fd();
    return facts;
  }
  std::unique_ptr<LinkSide> makeOther(const Tried& tried, int gpu) const {
    if (tried.distance == Distance::kBetweenTwo) return std::make_unique<FarSide>(gpu, tried.kind);
    return std::make_unique<NearSide>(gpu, tried.kind, factsOf(tried, false));
  }
  LinkSide& side(int side) { return side == 0 ? near_ : *other_; }

  const ProcessHandle process_;
  NearSide near_;
  const std::unique_ptr<LinkSide> other_;
  SideLink first_;
  SideLink second_;
  FakeRegions regions_[2];
};

bool isOffered(MemoryKind kind) {
  if (!isByFabric(kind)) return true;
  return tryFabricHandles(0).isOk();
}

// Everything that travels. A legacy handle does not open in the process that made it, and an
// allocation of a pool is not imported there.
std::vector<Tried> everything() {
  std::vector<Tried> all;
  for (const MemoryKind kind :
       {MemoryKind::kCudaDescriptor, MemoryKind::kCudaHandle, MemoryKind::kCudaPool,
        MemoryKind::kCudaFabric, MemoryKind::kCudaChunks, MemoryKind::kCudaFabricChunks}) {
    all.push_back({kind, Distance::kOneProcess});
    if (kind != MemoryKind::kCudaHandle && kind != MemoryKind::kCudaPool)
      all.push_back({kind, Distance::kAsIfBetweenTwo});
    all.push_back({kind, Distance::kBetweenTwo});
  }
  return all;
}

MakeLinkPair pairOf(const Tried& tried) {
  return [tried]() -> std::unique_ptr<LinkPair> {
    const auto gpus = listGpus();
    if (!gpus.isOk() || gpus->empty() || !isOffered(tried.kind)) return nullptr;
    return std::make_unique<CudaIpcPair>(tried, static_cast<int>(gpus->size()));
  };
}

std::vector<MakeLinkPair> pairs() {
  std::vector<MakeLinkPair> all;
  for (const Tried& tried : everything()) all.push_back(pairOf(tried));
  return all;
}

std::string nameOfPair(const testing::TestParamInfo<MakeLinkPair>& info) {
  const Tried tried = everything()[info.index];
  std::string name;
  if (tried.kind == MemoryKind::kCudaDescriptor) name = "Vmm";
  if (tried.kind == MemoryKind::kCudaHandle) name = "CudaMalloc";
  if (tried.kind == MemoryKind::kCudaPool) name = "Pool";
  if (tried.kind == MemoryKind::kCudaFabric) name = "Fabric";
  if (tried.kind == MemoryKind::kCudaChunks) name = "Chunks";
  if (tried.kind == MemoryKind::kCudaFabricChunks) name = "FabricChunks";
  switch (tried.distance) {
    case Distance::kOneProcess: return name + "InOneProcess";
    case Distance::kAsIfBetweenTwo: return name + "AsIfBetweenTwo";
    case Distance::kBetweenTwo: break;
  }
  return name + "BetweenTwo";
}

}  // namespace
}  // namespace peerlane::gputest

namespace peerlane {
namespace {

INSTANTIATE_TEST_SUITE_P(CudaIpc, LinkContract, testing::ValuesIn(gputest::pairs()),
                         gputest::nameOfPair);
// Performed by an agent, checked by the owner, on their way: not where everything is mapped.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(AgentLinkContract);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(OwnerLinkContract);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(WireLinkContract);

}  // namespace
}  // namespace peerlane

namespace peerlane::gputest {
namespace {

// What a peer may send in place of a fabric handle fails its import, and nothing else.
TEST(CudaIpcLink, RefusesForgedFabricHandles) {
  const Tried tried{MemoryKind::kCudaFabric, Distance::kAsIfBetweenTwo};
  const std::unique_ptr<LinkPair> pair = pairOf(tried)();
  if (!pair) GTEST_SKIP() << "needs fabric handles";
  const LinkMemory memory = pair->allocate(1, 4096);
  const auto attach = [&](std::vector<std::byte> handle) {
    Grant grant;
    grant.region = pair->regions(1).add(memory.bytes, Access::kRemoteReadWrite);
    grant.region.kind = memory.kind;
    grant.region.device = memory.device;
    grant.own.blob = CudaPart{.offset = memory.fdOffset,
                              .backingBytes = memory.backingBytes,
                              .identity = memory.identity,
                              .handle = std::move(handle)}
                         .encode();
    return pair->link(0).attach(std::move(grant)).status();
  };
  std::vector<std::byte> forged = memory.handle;
  forged[5] ^= std::byte{0x55};
  const Status refused = attach(forged);
  EXPECT_FALSE(refused.isOk());
  EXPECT_NE(refused.message().find("the fabric handle leads to no memory"), std::string_view::npos)
      << refused.toString();
  for (const size_t length : {size_t{0}, size_t{63}, size_t{65}}) {
    std::vector<std::byte> other = memory.handle;
    other.resize(length);
    EXPECT_EQ(attach(other).code(), Code::kCorrupt) << length;
  }
  EXPECT_TRUE(attach(memory.handle).isOk());
}

// The owner says how many bytes an allocation has; kernels here would write behind its end.
class ImportedSizes : public testing::TestWithParam<MemoryKind> {};

TEST_P(ImportedSizes, AreThoseOfTheDriver) {
  const std::unique_ptr<LinkPair> pair = pairOf({GetParam(), Distance::kBetweenTwo})();
  if (!pair) GTEST_SKIP() << "needs 1 GPUs";
  const LinkMemory memory = pair->allocate(1, 40960);
  const auto attach = [&](uint64_t backingBytes) {
    Grant grant;
    grant.region = pair->regions(1).add(memory.bytes, Access::kRemoteReadWrite);
    grant.region.kind = memory.kind;
    grant.region.device = memory.device;
    RegionRecord record;
    fillRecord(memory, grant.region, record);
    record.memory.backingBytes = backingBytes;
    auto part = pair->link(1).grant(record);
    if (!part.isOk()) return part.status();
    grant.own = std::move(*part);
    return pair->link(0).attach(std::move(grant)).status();
  };
  const Status lied = attach(memory.backingBytes + 1);
  EXPECT_EQ(lied.code(), Code::kCorrupt) << lied.toString();
  EXPECT_NE(lied.message().find("is said to have"), std::string_view::npos) << lied.toString();
  const Status told = attach(memory.backingBytes);
  EXPECT_TRUE(told.isOk()) << told.toString();
}
INSTANTIATE_TEST_SUITE_P(CudaIpc, ImportedSizes,
                         testing::Values(MemoryKind::kCudaHandle, MemoryKind::kCudaPool),
                         [](const testing::TestParamInfo<MemoryKind>& kind) {
                           return kind.param == MemoryKind::kCudaPool ? "Pool" : "CudaMalloc";
                         });

}  // namespace
}  // namespace peerlane::gputest
