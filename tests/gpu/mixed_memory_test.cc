// SPDX-License-Identifier: Apache-2.0
//
// Host memory at one side and GPU memory at the other, in one transfer that a GPU carries out: who
// may ask for it, what gets pinned for how long, and what is refused.
#include <cuda_runtime_api.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>

#include "peerlane/session/peer/peer_core.h"
#include "tests/gpu/both_ways.h"

namespace peerlane::gputest {
namespace {

constexpr size_t kBytes = size_t{3} << 20;

struct Pair {
  Memory local;
  Memory remote;
};

class MixedMemory : public ::testing::TestWithParam<Pair> {};

// Both directions, every engine, one block and scattered ones; behind the put a signal.
TEST_P(MixedMemory, ArrivesBothWays) {
  PEERLANE_NEEDS_GPUS(1);
  const auto active = [&](const Line& line) {
    const Side side(0, line, kBytes, GetParam().local);
    uint32_t round = 0;
    for (const Engine engine : {Engine::kAuto, Engine::kCe, Engine::kSm})
      for (const size_t blocks : {1, 300})
        putAndGet(side, line, {.blocks = blocks, .unit = 1, .engine = engine}, ++round);
    line.send("end");
  };
  const auto passive = [&](const Line& line) {
    lookAndAnswer(Side(1, line, kBytes, GetParam().remote), line);
  };
  EXPECT_TRUE(runTwo(active, passive));
}

INSTANTIATE_TEST_SUITE_P(
    Pairs, MixedMemory,
    ::testing::Values(Pair{Memory::kVmm, Memory::kShared}, Pair{Memory::kVmm, Memory::kMemfd},
                      Pair{Memory::kShared, Memory::kVmm}, Pair{Memory::kHeap, Memory::kVmm},
                      Pair{Memory::kPinned, Memory::kVmm}, Pair{Memory::kMemfd, Memory::kVmm}),
    [](const auto& tested) {
      return nameOf(tested.param.local) + "To" + nameOf(tested.param.remote);
    });

// Posted before the peer's region is imported, on a stream: pinned and copied when it is.
TEST(MixedMemoryLate, AStreamWaitsForTheImport) {
  PEERLANE_NEEDS_GPUS(1);
  const auto sideOf = [](int index, Memory memory) {
    return [index, memory](const Line& line) {
      const Side side(index, line, kBytes, memory);
      if (index == 0) {
        fill(side.region.data(), kBytes, 7);
        const Block block = side.block(0, kBytes);
        PostOptions options;
        options.deviceStream = side.deviceStream();
        must(must(put(side.peer, {&block, 1}, options), "put").wait(kPatience), "wait");
        line.send("there");
        (void)line.receive();
      } else {
        (void)line.receive();
        EXPECT_EQ(wrongWords(side.region.data(), kBytes, 7), 0u);
        line.send("seen");
      }
    };
  };
  EXPECT_TRUE(runTwo(sideOf(0, Memory::kVmm), sideOf(1, Memory::kShared)));
  EXPECT_TRUE(runTwo(sideOf(0, Memory::kHeap), sideOf(1, Memory::kVmm)));
}

// Pages from host memory by fresh numbers, into GPU memory: a plan.
TEST(MixedMemoryPlan, PagesByNumber) {
  PEERLANE_NEEDS_GPUS(1);
  constexpr size_t kPage = 4096, kPages = kBytes / kPage;
  const auto active = [&](const Line& line) {
    const Side side(0, line, kBytes);
    IndexedBlocks blocks;
    blocks.local = &side.region;
    blocks.remote = &side.remote;
    blocks.blockBytes = kPage;
    blocks.localCount = blocks.remoteCount = blocks.maxBlocksPerPost = kPages;
    auto plan = must(Plan::create(side.peer, Direction::kGet, blocks), "plan");
    std::vector<uint32_t> pages(kPages);
    std::iota(pages.begin(), pages.end(), 0u);
    line.meet();
    for (uint32_t round = 0; round < 5; ++round) {
      clear(side.region.data(), kBytes, 0);
      std::shuffle(pages.begin(), pages.end(), std::mt19937(round));
      must(must(plan.post(pages, pages), "post").wait(kPatience), "wait");
      EXPECT_EQ(wrongWords(side.region.data(), kBytes, 11), 0u);
    }
    line.send("end");
  };
  const auto passive = [&](const Line& line) {
    const Side side(1, line, kBytes, Memory::kShared);
    fill(side.region.data(), kBytes, 11);
    line.meet();
    (void)line.receive();
  };
  EXPECT_TRUE(runTwo(active, passive));
}

// What a heap shares pages with: pinned once, however many regions need it; and free afterwards.
TEST(MixedMemoryPins, RegionsThatShareAPage) {
  PEERLANE_NEEDS_GPUS(1);
  const auto active = [&](const Line& line) {
    const Device device = gpu(0);
    auto context = makeContext({device});
    const Peer peer = meetPeer(*context, line, false);
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    auto* memory = static_cast<std::byte*>(
        mmap(nullptr, 8 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    std::memset(memory, 1, 8 * page);
    // The second begins in the page where the first ends; the third lies inside of both.
    Region regions[] = {
        must(context->registerRegion(memory + 100, 3 * page, Access::kLocal), "first"),
        must(context->registerRegion(memory + 100 + 3 * page, 3 * page, Access::kLocal), "second"),
        must(context->registerRegion(memory + 2 * page, 2 * page, Access::kLocal), "third")};
    Region shared = must(context->allocate(kBytes, {.device = device}), "allocate");
    const RemoteRegion remote = exchange(peer, shared, line);
    for (int i = 0; i < 3; ++i) {
      std::memset(regions[i].data(), i + 2, regions[i].bytes());
      const Block block{&regions[i], 0, &remote, 0, regions[i].bytes()};
      must(must(put(peer, {&block, 1}, {.engine = Engine::kSm}), "put").wait(kPatience), "wait");
      line.send(std::to_string(i + 2) + " " + std::to_string(regions[i].bytes()));
      ASSERT_EQ(line.receive(), "good");
    }
    for (const Region& region : regions) must(context->unregister(region, kPatience), "unregister");
    // Nothing of it is pinned any more: the driver takes it anew.
    mustCuda(cudaHostRegister(memory, 8 * page, cudaHostRegisterDefault), "cudaHostRegister");
    mustCuda(cudaHostUnregister(memory), "cudaHostUnregister");
    munmap(memory, 8 * page);
    line.send("end 0");
  };
  const auto passive = [&](const Line& line) {
    const Side side(1, line, kBytes);
    for (;;) {
      const std::string said = line.receive();
      if (said == "end 0") return;
      const int value = std::stoi(said);
      const size_t bytes = std::stoul(said.substr(said.find(' ')));
      std::vector<unsigned char> seen(bytes);
      mustCuda(cudaMemcpy(seen.data(), side.region.data(), bytes, cudaMemcpyDeviceToHost), "copy");
      const bool good =
          std::all_of(seen.begin(), seen.end(), [&](int byte) { return byte == value; });
      line.send(good ? "good" : "wrong");
    }
  };
  EXPECT_TRUE(runTwo(active, passive));
}

// The owner takes its host memory back: nothing of it stays pinned at the other side either, where
// the place can be pinned anew.
TEST(MixedMemoryPins, TakenBackByTheOwner) {
  PEERLANE_NEEDS_GPUS(1);
  const auto active = [&](const Line& line) {
    const Side side(0, line, kBytes);
    const Block block = side.block(0, kBytes);
    must(must(put(side.peer, {&block, 1}), "put").wait(kPatience), "wait");
    std::byte* const here = side.remote.slot()->region->memory.mapped;
    EXPECT_EQ(cudaHostRegister(here, kBytes, cudaHostRegisterDefault),
              cudaErrorHostMemoryAlreadyRegistered);
    (void)cudaGetLastError();
    line.send("take it back");
    ASSERT_EQ(line.receive(), "taken back");
    const auto refused = put(side.peer, {&block, 1});
    EXPECT_FALSE(refused.isOk());
    mustCuda(cudaHostRegister(here, kBytes, cudaHostRegisterDefault), "pinned anew");
    mustCuda(cudaHostUnregister(here), "cudaHostUnregister");
    line.send("end");
  };
  const auto passive = [&](const Line& line) {
    const Side side(1, line, kBytes, Memory::kShared);
    (void)line.receive();
    must(side.context->unregister(side.region, kPatience), "unregister");
    line.send("taken back");
    (void)line.receive();
  };
  EXPECT_TRUE(runTwo(active, passive));
}

// From a context that was made without GPUs: staged, or straight by the peer, which has the GPU.
TEST(MixedMemoryElsewhere, NoGpuHere) {
  PEERLANE_NEEDS_GPUS(1);
  const auto active = [&](const Line& line) {
    auto context = makeContext({});
    const Peer peer = meetPeer(*context, line, false);
    Region region = must(context->allocate(kBytes), "allocate");
    const RemoteRegion remote = exchange(peer, region, line);
    const Block block{&region, 0, &remote, 0, kBytes};
    EXPECT_NE(remote.description().find("staged"), std::string::npos) << remote.description();
    std::memset(region.data(), 5, kBytes);
    must(must(put(peer, {&block, 1}), "put").wait(kPatience), "wait");
    std::memset(region.data(), 6, kBytes);
    must(must(get(peer, {&block, 1}), "get").wait(kPatience), "wait");
    const std::vector<std::byte> mine(kBytes, std::byte{5});
    EXPECT_EQ(std::memcmp(region.data(), mine.data(), kBytes), 0);
    line.send("you");
    ASSERT_EQ(line.receive(), "done");
    const std::vector<std::byte> expected(kBytes, std::byte{9});
    EXPECT_EQ(std::memcmp(region.data(), expected.data(), kBytes), 0);
  };
  const auto passive = [&](const Line& line) {
    const Side side(1, line, kBytes);
    ASSERT_EQ(line.receive(), "you");
    clear(side.region.data(), kBytes, 9);
    const Block block = side.block(0, kBytes);
    must(must(put(side.peer, {&block, 1}), "put").wait(kPatience), "wait");
    line.send("done");
  };
  EXPECT_TRUE(runTwo(active, passive));
}

}  // namespace
}  // namespace peerlane::gputest
