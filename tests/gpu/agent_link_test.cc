// SPDX-License-Identifier: Apache-2.0
//
// A link whose agent reaches memory of GPUs, as a NIC does: no processor of this side maps what it
// copies. The agent is a fake, which reaches memory of GPUs in software only.
#include <algorithm>
#include <cstring>

#include "peerlane/session/peer/peer_core.h"
#include "tests/fake/added_transport.h"
#include "tests/gpu/two_processes.h"

namespace peerlane::gputest {
namespace {

constexpr size_t kBytes = size_t{1} << 20;
constexpr int kBeforeAll = 1;
constexpr int kAfterAll = 100000;

FakeLinkOptions nic() {
  FakeLinkOptions options;
  options.name = "nic";
  options.carriesWords = false;
  options.kinds = {MemoryKind::kShared, MemoryKind::kCudaDescriptor};
  return options;
}

// Two contexts of one process, each with a GPU, and the links that are named.
struct Two {
  Two(const FakeLinkOptions& options, int place, const std::vector<std::string>& links)
      : added(network, options, place), a(make(links)), b(make(links)) {
    toB = must(a->connect(b->ticket(), kPatience), "connect");
    toA = must(b->accept(kPatience), "accept");
  }
  static std::unique_ptr<Context> make(const std::vector<std::string>& links) {
    Config config;
    config.links = links;
    config.spin = kPatience;  // the fake wire wakes nobody
    return must(Context::create({.config = config, .devices = {gpu(0)}}), "context");
  }

  FakeNetwork network{3};
  AddedTransport added;
  std::unique_ptr<Context> a;
  std::unique_ptr<Context> b;
  Peer toB;
  Peer toA;
};

void wipe(const Region& region) {
  if (region.device().kind == DeviceKind::kHost)
    std::memset(region.data(), 0, kBytes);
  else
    clear(region.data(), kBytes, 0);
}

void moveAll(Two& two, const Region& local, const Region& remote, uint32_t seed) {
  const RemoteRegion there = must(two.toB.importRegion(remote.share()), "import");
  const Block block{&local, 0, &there, 0, kBytes};
  fill(local.data(), kBytes, seed);
  wipe(remote);
  must(must(put(two.toB, std::span(&block, 1)), "put").wait(kPatience), "put wait");
  EXPECT_EQ(wrongWords(remote.data(), kBytes, seed), 0u);
  wipe(local);
  must(must(get(two.toB, std::span(&block, 1)), "get").wait(kPatience), "get wait");
  EXPECT_EQ(wrongWords(local.data(), kBytes, seed), 0u);
}

TEST(AgentLink, ReachesMemoryOfTheHostAndOfGpus) {
  PEERLANE_NEEDS_GPUS(1);
  if (!inSoftware()) GTEST_SKIP() << "needs GPUs in software: the fake agent is a CPU's";
  EXPECT_TRUE(runOne([](const Line&) {
    Two two(nic(), kAfterAll, {"self", "nic"});
    const Region gpuA = makeRegion(*two.a, gpu(0), Memory::kVmm, kBytes);
    const Region gpuB = makeRegion(*two.b, gpu(0), Memory::kVmm, kBytes);
    const Region hostA = makeRegion(*two.a, gpu(0), Memory::kShared, kBytes);
    const Region hostB = makeRegion(*two.b, gpu(0), Memory::kShared, kBytes);
    const auto route = [&](const Region& local, const Region& remote) {
      return two.toB.routeOf(must(two.toB.importRegion(remote.share()), "import"), local);
    };
    // Where the CPU reaches both, it copies.
    EXPECT_EQ(route(hostA, hostB).link, "self");
    for (const auto& [local, remote] : {std::pair(gpuA, gpuB), std::pair(hostA, gpuB)}) {
      EXPECT_EQ(route(local, remote).link, "nic");
      EXPECT_EQ(route(local, remote).by, "agent");
    }
    EXPECT_EQ(two.toB.route().deviceLink, "nic");
    const uint64_t before = two.network.wires().front()->written(0);
    moveAll(two, gpuA, gpuB, 1);
    moveAll(two, hostA, gpuB, 2);
    moveAll(two, gpuA, hostB, 3);
    moveAll(two, hostA, hostB, 4);
    EXPECT_GE(two.network.wires().front()->written(0) - before, 2 * kBytes) << "over the wire";
    EXPECT_EQ(two.network.keys()->made(), 1u) << "one for the one region that it granted";
  }));
}

// Of cudaMalloc it says that it does not reach it: then the host stages, and the route says why.
TEST(AgentLink, RefusesAnotherKindWithItsReason) {
  PEERLANE_NEEDS_GPUS(1);
  if (!inSoftware()) GTEST_SKIP() << "needs GPUs in software: the fake agent is a CPU's";
  EXPECT_TRUE(runOne([](const Line&) {
    FakeLinkOptions options = nic();
    options.kinds.push_back(MemoryKind::kCudaHandle);
    options.refusedKind = MemoryKind::kCudaHandle;
    options.whyRefused = "its driver registers no cudaMalloc memory";
    Two two(options, kAfterAll, {"self", "nic"});
    const Region gpuA = makeRegion(*two.a, gpu(0), Memory::kVmm, kBytes);
    const Region mallocB = makeRegion(*two.b, gpu(0), Memory::kMalloc, kBytes);
    const RemoteRegion remote = must(two.toB.importRegion(mallocB.share()), "import");
    const MemoryRoute route = two.toB.routeOf(remote, gpuA);
    EXPECT_EQ(route.link, "");
    EXPECT_NE(std::find(route.refused.begin(), route.refused.end(),
                        "nic: its driver registers no cudaMalloc memory"),
              route.refused.end());
    EXPECT_NE(remote.description().find("its driver registers no cudaMalloc memory"),
              std::string::npos)
        << remote.description();
    moveAll(two, gpuA, mallocB, 5);  // staged
  }));
}

// GPUs that map the memory are preferred to the agent, which comes after them; and the first one
// that is lost leaves its regions to the other.
TEST(AgentLink, StandsInForALostOne) {
  PEERLANE_NEEDS_GPUS(1);
  if (!inSoftware()) GTEST_SKIP() << "needs GPUs in software: the fake agent is a CPU's";
  EXPECT_TRUE(runOne([](const Line&) {
    Two two(nic(), kBeforeAll, {"self", "cuda_ipc", "nic"});
    EXPECT_EQ(two.toB.core()->links().live().size(), 3u);
    const Region gpuA = makeRegion(*two.a, gpu(0), Memory::kVmm, kBytes);
    const Region gpuB = makeRegion(*two.b, gpu(0), Memory::kVmm, kBytes);
    const RemoteRegion remote = must(two.toB.importRegion(gpuB.share()), "import");
    EXPECT_EQ(two.toB.routeOf(remote, gpuA).link, "nic");
    moveAll(two, gpuA, gpuB, 6);
    two.network.wires().front()->loseAfter(0, 0);
    for (const Peer& peer : {two.toA, two.toB})
      must(peer.core()->progress().wait([&] { return peer.core()->links().live().size() == 2; },
                                        kPatience),
           "the end of the link");
    const MemoryRoute route = two.toB.routeOf(remote, gpuA);
    EXPECT_EQ(route.link, "cuda_ipc");
    EXPECT_EQ(route.by, "mapping");
    moveAll(two, gpuA, gpuB, 7);
    EXPECT_EQ(two.toB.state(), "ready");
  }));
}

}  // namespace
}  // namespace peerlane::gputest
