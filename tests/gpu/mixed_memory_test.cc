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

#include "tests/gpu/two_processes.h"

namespace peerlane::gputest {
namespace {

constexpr size_t kBytes = size_t{3} << 20;

enum class Memory { kGpu, kShared, kMemfd, kPinned, kHeap };

const char* nameOf(Memory memory) {
  switch (memory) {
    case Memory::kGpu: return "Gpu";
    case Memory::kShared: return "Shared";
    case Memory::kMemfd: return "Memfd";
    case Memory::kPinned: return "Pinned";
    case Memory::kHeap: return "Heap";
  }
  return "?";
}

Region makeRegion(Context& context, Device device, Memory memory, size_t bytes) {
  static std::vector<std::unique_ptr<std::byte[]>> heap;  // goes with the process
  void* at = nullptr;
  switch (memory) {
    case Memory::kGpu: return must(context.allocate(bytes, {.device = device}), "allocate");
    case Memory::kShared: return must(context.allocate(bytes), "allocate");
    case Memory::kMemfd: {
      const int fd = memfd_create("mixed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
      if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0)
        die("memfd", Status(Code::kSystem, std::strerror(errno)));
      at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
      close(fd);
      if (at == MAP_FAILED) die("mmap", Status(Code::kSystem, std::strerror(errno)));
      break;
    }
    case Memory::kPinned:
      mustCuda(cudaHostAlloc(&at, bytes, cudaHostAllocPortable), "cudaHostAlloc");
      break;
    case Memory::kHeap: at = heap.emplace_back(new std::byte[bytes]).get(); break;
  }
  return must(context.registerRegion(at, bytes, Access::kRemoteReadWrite), "registerRegion");
}

void fillRegion(const Region& region, size_t bytes, uint32_t seed) {
  if (region.device().kind != DeviceKind::kHost) return fill(region.data(), bytes, seed);
  void* staging = nullptr;
  mustCuda(cudaMalloc(&staging, bytes), "cudaMalloc");
  fill(staging, bytes, seed);
  mustCuda(cudaMemcpy(region.data(), staging, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
  mustCuda(cudaFree(staging), "cudaFree");
}

uint64_t wrongIn(const Region& region, size_t bytes, uint32_t seed) {
  if (region.device().kind != DeviceKind::kHost) return wrongWords(region.data(), bytes, seed);
  void* staging = nullptr;
  mustCuda(cudaMalloc(&staging, bytes), "cudaMalloc");
  mustCuda(cudaMemcpy(staging, region.data(), bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
  const uint64_t wrong = wrongWords(staging, bytes, seed);
  mustCuda(cudaFree(staging), "cudaFree");
  return wrong;
}

struct Side {
  Side(int index, const Line& line, Memory memory, size_t bytes = kBytes)
      : device(gpu(index)),
        context(makeContext({device})),
        peer(meetPeer(*context, line, index == 1)),
        region(makeRegion(*context, device, memory, bytes)),
        remote(exchange(peer, region, line)) {}
  Device device;
  std::unique_ptr<Context> context;
  Peer peer;
  Region region;
  RemoteRegion remote;
};

struct Pair {
  Memory local;
  Memory remote;
};

class MixedMemory : public ::testing::TestWithParam<Pair> {};

// Both directions, every engine, one block and scattered ones; behind the put a signal.
TEST_P(MixedMemory, ArrivesBothWays) {
  PEERLANE_NEEDS_GPUS(1);
  const auto active = [&](const Line& line) {
    Side side(0, line, GetParam().local);
    uint32_t seed = 1;
    for (const Engine engine : {Engine::kAuto, Engine::kCe, Engine::kSm})
      for (const size_t blocks : {1, 300}) {
        ++seed;
        fillRegion(side.region, kBytes, seed);
        std::vector<Block> list;
        const size_t each = kBytes / blocks;
        for (size_t i = 0; i < blocks; ++i) {
          const size_t last = i + 1 == blocks ? kBytes - i * each : each;
          list.push_back({&side.region, i * each, &side.remote, i * each, last});
        }
        std::shuffle(list.begin(), list.end(), std::mt19937(seed));
        PostOptions options{.engine = engine};
        options.notify.signal = 3;
        must(must(put(side.peer, list, options), "put").wait(kPatience), "put wait");
        line.send("look");
        ASSERT_EQ(line.receive(), "good") << engineName(engine);
        options.notify = {};
        must(must(get(side.peer, list, options), "get").wait(kPatience), "get wait");
        EXPECT_EQ(wrongIn(side.region, kBytes, seed + 1000), 0u) << engineName(engine);
      }
    line.send("end");
  };
  const auto passive = [&](const Line& line) {
    Side side(1, line, GetParam().remote);
    const Signal signal = must(Signal::create(side.peer, 3), "signal");
    uint32_t seed = 1;
    uint64_t puts = 0;
    while (line.receive() == "look") {
      ++seed;
      must(signal.wait(++puts, kPatience), "signal wait");
      const uint64_t wrong = wrongIn(side.region, kBytes, seed);
      fillRegion(side.region, kBytes, seed + 1000);
      line.send(wrong == 0 ? "good" : std::to_string(wrong) + " wrong words");
    }
  };
  EXPECT_TRUE(runTwo(active, passive));
}

INSTANTIATE_TEST_SUITE_P(
    Pairs, MixedMemory,
    ::testing::Values(Pair{Memory::kGpu, Memory::kShared}, Pair{Memory::kGpu, Memory::kMemfd},
                      Pair{Memory::kShared, Memory::kGpu}, Pair{Memory::kHeap, Memory::kGpu},
                      Pair{Memory::kPinned, Memory::kGpu}, Pair{Memory::kMemfd, Memory::kGpu}),
    [](const auto& tested) {
      return std::string(nameOf(tested.param.local)) + "To" + nameOf(tested.param.remote);
    });

// Posted before the peer's region is imported, on a stream: pinned and copied when it is.
TEST(MixedMemoryLate, AStreamWaitsForTheImport) {
  PEERLANE_NEEDS_GPUS(1);
  const auto sideOf = [](int index, Memory memory) {
    return [index, memory](const Line& line) {
      Side side(index, line, memory);
      if (index == 0) {
        cudaStream_t stream = nullptr;
        mustCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
        fillRegion(side.region, kBytes, 7);
        const Block block{&side.region, 0, &side.remote, 0, kBytes};
        PostOptions options;
        options.deviceStream = DeviceStream::cuda(stream);
        must(must(put(side.peer, {&block, 1}, options), "put").wait(kPatience), "wait");
        line.send("there");
        (void)line.receive();
      } else {
        (void)line.receive();
        EXPECT_EQ(wrongIn(side.region, kBytes, 7), 0u);
        line.send("seen");
      }
    };
  };
  EXPECT_TRUE(runTwo(sideOf(0, Memory::kGpu), sideOf(1, Memory::kShared)));
  EXPECT_TRUE(runTwo(sideOf(0, Memory::kHeap), sideOf(1, Memory::kGpu)));
}

// Pages from host memory by fresh numbers, into GPU memory: a plan.
TEST(MixedMemoryPlan, PagesByNumber) {
  PEERLANE_NEEDS_GPUS(1);
  constexpr size_t kPage = 4096, kPages = kBytes / kPage;
  const auto active = [&](const Line& line) {
    Side side(0, line, Memory::kGpu);
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
    Side side(1, line, Memory::kShared);
    fillRegion(side.region, kBytes, 11);
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
    Side side(1, line, Memory::kGpu);
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

// The owner takes its host memory back: nothing of it stays pinned at the other side either.
TEST(MixedMemoryPins, TakenBackByTheOwner) {
  PEERLANE_NEEDS_GPUS(1);
  const auto active = [&](const Line& line) {
    Side side(0, line, Memory::kGpu);
    const Block block{&side.region, 0, &side.remote, 0, kBytes};
    must(must(put(side.peer, {&block, 1}), "put").wait(kPatience), "wait");
    line.send("take it back");
    ASSERT_EQ(line.receive(), "taken back");
    const auto refused = put(side.peer, {&block, 1});
    EXPECT_FALSE(refused.isOk());
    line.send("end");
  };
  const auto passive = [&](const Line& line) {
    Side side(1, line, Memory::kShared);
    (void)line.receive();
    must(side.context->unregister(side.region, kPatience), "unregister");
    line.send("taken back");
    (void)line.receive();
  };
  EXPECT_TRUE(runTwo(active, passive));
}

TEST(MixedMemoryRefused, PrivateMemoryOfAPeer) {
  PEERLANE_NEEDS_GPUS(1);
  const auto active = [&](const Line& line) {
    Side side(0, line, Memory::kGpu);
    must(side.remote.prepare(kPatience), "prepare");
    const Block block{&side.region, 0, &side.remote, 0, kBytes};
    const auto refused = put(side.peer, {&block, 1});
    ASSERT_FALSE(refused.isOk());
    EXPECT_EQ(refused.status().code(), Code::kNotSupported);
    EXPECT_NE(refused.status().message().find("private memory"), std::string::npos)
        << refused.status().toString();
    line.send("end");
  };
  const auto passive = [&](const Line& line) {
    Side side(1, line, Memory::kHeap);
    (void)line.receive();
  };
  EXPECT_TRUE(runTwo(active, passive));
}

// A context that was made without GPUs says what to do.
TEST(MixedMemoryRefused, NoGpuHere) {
  PEERLANE_NEEDS_GPUS(1);
  const auto active = [&](const Line& line) {
    auto context = makeContext({});
    const Peer peer = meetPeer(*context, line, false);
    Region region = must(context->allocate(kBytes), "allocate");
    const RemoteRegion remote = exchange(peer, region, line);
    const Block block{&region, 0, &remote, 0, kBytes};
    const auto refused = put(peer, {&block, 1});
    ASSERT_FALSE(refused.isOk());
    EXPECT_NE(refused.status().message().find("ContextOptions::devices"), std::string::npos)
        << refused.status().toString();
    // The peer, which has the GPU, may do it.
    line.send("you");
    ASSERT_EQ(line.receive(), "done");
    const std::vector<std::byte> expected(kBytes, std::byte{9});
    EXPECT_EQ(std::memcmp(region.data(), expected.data(), kBytes), 0);
  };
  const auto passive = [&](const Line& line) {
    Side side(1, line, Memory::kGpu);
    ASSERT_EQ(line.receive(), "you");
    clear(side.region.data(), kBytes, 9);
    const Block block{&side.region, 0, &side.remote, 0, kBytes};
    must(must(put(side.peer, {&block, 1}), "put").wait(kPatience), "wait");
    line.send("done");
  };
  EXPECT_TRUE(runTwo(active, passive));
}

}  // namespace
}  // namespace peerlane::gputest
