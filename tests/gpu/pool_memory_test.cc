// SPDX-License-Identifier: Apache-2.0
//
// Memory of cudaMallocAsync: of pools that were made for export, and of others; and that nobody
// frees it before its importers have.
#include <atomic>
#include <thread>

#include "tests/gpu/holdings.h"
#include "tests/gpu/two_processes.h"

namespace peerlane::gputest {
namespace {

constexpr size_t kBytes = size_t{5} << 20;

cudaMemPool_t makePool(Device device, bool exportable = true) {
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.handleTypes =
      exportable ? cudaMemHandleTypePosixFileDescriptor : cudaMemHandleTypeNone;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = device.index;
  cudaMemPool_t pool = nullptr;
  mustCuda(cudaMemPoolCreate(&pool, &properties), "cudaMemPoolCreate");
  return pool;
}

std::byte* take(cudaMemPool_t pool, size_t bytes) {
  void* pointer = nullptr;
  mustCuda(cudaMallocFromPoolAsync(&pointer, bytes, pool, nullptr), "cudaMallocFromPoolAsync");
  mustCuda(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
  return static_cast<std::byte*>(pointer);
}

Region registered(Context& context, std::byte* memory, size_t bytes) {
  return must(context.registerRegion(memory, bytes, Access::kRemoteReadWrite), "registerRegion");
}

// On GPUs in software a device fails where memory is freed before its importer has freed it.
void mustFree(std::byte* memory) {
  mustCuda(cudaFree(memory), "cudaFree");
  mustCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

// Both ways with both engines, at an odd offset in an allocation.
TEST(PoolMemory, TravelsByItsPoolsDescriptor) {
  PEERLANE_NEEDS_GPUS(1);
  const auto side = [](int index, const Line& line) {
    const Meeting meeting(index, line);
    std::byte* const memory = take(makePool(meeting.device), kBytes + 1000);
    const Region region = registered(*meeting.context, memory + 1000, kBytes);
    EXPECT_NE(region.description().find("cudaMallocAsync"), std::string::npos)
        << region.description();
    fill(region.data(), kBytes, static_cast<uint32_t>(index));
    {
      const RemoteRegion remote = exchange(meeting.peer, region, line);
      const Region target =
          registered(*meeting.context, take(makePool(meeting.device, false), kBytes), kBytes);
      for (const Engine engine : {Engine::kCe, Engine::kSm}) {
        clear(target.data(), kBytes, 0);
        const Block whole{&target, 0, &remote, 0, kBytes};
        must(must(get(meeting.peer, {&whole, 1}, {.engine = engine}), "get").wait(kPatience),
             "wait");
        EXPECT_EQ(wrongWords(target.data(), kBytes, static_cast<uint32_t>(1 - index)), 0u);
      }
      line.meet();
      if (index == 0) {
        fill(target.data(), kBytes, 7);
        const Block whole{&target, 0, &remote, 0, kBytes};
        must(must(put(meeting.peer, {&whole, 1}), "put").wait(kPatience), "wait");
      }
      line.meet();
      if (index == 1) {
        EXPECT_EQ(wrongWords(region.data(), kBytes, 7), 0u);
      }
    }
    must(meeting.context->unregister(region, kPatience), "unregister");
    mustFree(memory);
    line.meet();
  };
  EXPECT_TRUE(
      runTwo([&](const Line& line) { side(0, line); }, [&](const Line& line) { side(1, line); }));
}

// The importer still has a handle to the region, and another region of the same allocation: what
// is taken back is freed there when the last of both is, and only then is the owner told.
TEST(PoolMemory, IsFreedByItsImporterBeforeItsOwner) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runTwo(
      [](const Line& line) {
        const Meeting meeting(0, line);
        const auto pool = makePool(meeting.device);
        std::byte* const memory = take(pool, 2 * kBytes);
        const Region first = registered(*meeting.context, memory, kBytes);
        // What was last seen of the pool is gone: it is the same pool all the same.
        std::byte* const passing = take(pool, kBytes);
        must(meeting.context->unregister(registered(*meeting.context, passing, kBytes), kPatience),
             "unregister");
        mustFree(passing);
        const Region second = registered(*meeting.context, memory + kBytes, kBytes);
        (void)exchange(meeting.peer, first, line);
        (void)exchange(meeting.peer, second, line);
        line.meet();  // both are imported
        must(meeting.context->unregister(first, kPatience), "unregister");
        line.meet();
        line.meet();  // the second one still works
        must(meeting.context->unregister(second, kPatience), "unregister");
        mustFree(memory);
        line.meet();
      },
      [](const Line& line) {
        const Meeting meeting(1, line);
        const Region own =
            must(meeting.context->allocate(kBytes, {.device = meeting.device}), "allocate");
        const RemoteRegion first = exchange(meeting.peer, own, line);
        const RemoteRegion second = exchange(meeting.peer, own, line);
        const Block toFirst{&own, 0, &first, 0, kBytes};
        const Block toSecond{&own, 0, &second, 0, kBytes};
        must(must(put(meeting.peer, {&toFirst, 1}), "put").wait(kPatience), "wait");
        must(must(put(meeting.peer, {&toSecond, 1}), "put").wait(kPatience), "wait");
        line.meet();
        line.meet();
        EXPECT_EQ(put(meeting.peer, {&toFirst, 1}).status().code(), Code::kClosed);
        must(must(put(meeting.peer, {&toSecond, 1}), "put").wait(kPatience), "wait");
        line.meet();
        line.meet();
      }));
}

// While a stream of the importer waits for a peer, and whether the importer has a handle of it or
// has just let go of it.
TEST(PoolMemory, IsTakenBackWhileAStreamOfTheImporterWaits) {
  PEERLANE_NEEDS_GPUS(1);
  for (const bool keeps : {true, false})
    EXPECT_TRUE(runTwo(
        [](const Line& line) {
          const Meeting meeting(0, line);
          std::byte* const memory = take(makePool(meeting.device), kBytes);
          const Region region = registered(*meeting.context, memory, kBytes);
          (void)exchange(meeting.peer, region, line);
          line.meet();
          must(meeting.context->unregister(region, kPatience), "unregister");
          mustFree(memory);
          must(addSignal(meeting.peer, 0), "addSignal");
          line.meet();
        },
        [keeps](const Line& line) {
          const Meeting meeting(1, line);
          const Region own =
              must(meeting.context->allocate(4096, {.device = meeting.device}), "allocate");
          const Signal signal = must(Signal::create(meeting.peer, 0), "signal");
          auto remote = std::make_unique<RemoteRegion>(exchange(meeting.peer, own, line));
          const Block block{&own, 0, remote.get(), 0, 4096};
          must(must(put(meeting.peer, {&block, 1}), "put").wait(kPatience), "wait");
          const Transfer waiting = must(signal.waitOn(meeting.deviceStream(), 1), "waitOn");
          if (!keeps) remote.reset();
          line.meet();
          must(waiting.wait(kPatience), "wait");
          line.meet();
        }));
}

// A goodbye says that nothing of this side is at the memory any more. So it is not said before what
// was imported is freed, whether somebody still has a handle of it or the last one has just gone.
TEST(PoolMemory, IsFreedByWhoLeaves) {
  PEERLANE_NEEDS_GPUS(1);
  for (const bool keeps : {true, false})
    EXPECT_TRUE(runTwo(
        [](const Line& line) {
          const Meeting meeting(0, line);
          std::byte* const memory = take(makePool(meeting.device), kBytes);
          const Region region = registered(*meeting.context, memory, kBytes);
          (void)exchange(meeting.peer, region, line);
          line.receive();  // it is leaving
          must(meeting.context->unregister(region, kPatience), "unregister");
          mustFree(memory);
          line.send("freed");
        },
        [keeps](const Line& line) {
          const Meeting meeting(1, line);
          const Region own =
              must(meeting.context->allocate(4096, {.device = meeting.device}), "allocate");
          auto remote = std::make_unique<RemoteRegion>(exchange(meeting.peer, own, line));
          const Block block{&own, 0, remote.get(), 0, 4096};
          must(must(put(meeting.peer, {&block, 1}), "put").wait(kPatience), "wait");
          if (!keeps) remote.reset();
          meeting.peer.close();
          line.send("leaving");
          line.receive();
          if (keeps) {
            EXPECT_EQ(put(meeting.peer, {&block, 1}).status().code(), Code::kClosed);
          }
        }));
}

// Two contexts of one process import the same allocation, which CUDA does not count: the first free
// would take it from both.
TEST(PoolMemory, ContextsOfOneProcessShareAnImport) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runTwo(
      [](const Line& line) {
        const Meeting meeting(0, line);
        std::byte* const memory = take(makePool(meeting.device), kBytes);
        const Region region = registered(*meeting.context, memory, kBytes);
        (void)exchange(meeting.peer, region, line);
        const Peer other = meetPeer(*meeting.context, line, false);
        (void)exchange(other, region, line);
        line.meet();
        must(meeting.context->unregister(region, kPatience), "unregister");
        mustFree(memory);
        line.meet();
      },
      [](const Line& line) {
        const Meeting meeting(1, line);
        const Region own =
            must(meeting.context->allocate(kBytes, {.device = meeting.device}), "allocate");
        fill(own.data(), kBytes, 3);
        auto another = makeContext({meeting.device});
        auto remote = std::make_unique<RemoteRegion>(exchange(meeting.peer, own, line));
        const Peer other = meetPeer(*another, line, true);
        const Region its = must(another->allocate(kBytes, {.device = meeting.device}), "allocate");
        const RemoteRegion its_remote = exchange(other, its, line);
        {
          const Block block{&own, 0, remote.get(), 0, kBytes};
          must(must(put(meeting.peer, {&block, 1}), "put").wait(kPatience), "wait");
        }
        const Block block{&its, 0, &its_remote, 0, kBytes};
        must(must(get(other, {&block, 1}), "get").wait(kPatience), "wait");
        EXPECT_EQ(wrongWords(its.data(), kBytes, 3), 0u);
        remote.reset();
        clear(its.data(), kBytes, 0);
        must(must(get(other, {&block, 1}), "get").wait(kPatience), "the other one's");
        EXPECT_EQ(wrongWords(its.data(), kBytes, 3), 0u);
        line.meet();
        line.meet();
      }));
}

// Many allocations of one pool at once, one after the other, and pools that come and go: nothing
// grows, and the descriptor of a pool is held once.
TEST(PoolMemory, CyclesLeaveNothing) {
  PEERLANE_NEEDS_GPUS(1);
  constexpr int kCycles = 60;
  constexpr size_t kRegions = 8;
  const auto side = [](int index, const Line& line) {
    const Meeting meeting(index, line);
    cudaMemPool_t pool = makePool(meeting.device);
    Holdings before;
    for (int i = 0; i < kCycles; ++i) {
      if (i == 20) before = Holdings::now();
      if (i % 3 == 2) {
        mustCuda(cudaMemPoolDestroy(pool), "cudaMemPoolDestroy");
        pool = makePool(meeting.device);
      }
      std::vector<std::byte*> memory;
      std::vector<Region> regions;
      const size_t descriptors = Holdings::now().descriptors;
      for (size_t n = 0; n < kRegions; ++n) {
        memory.push_back(take(pool, kBytes / 4));
        regions.push_back(registered(*meeting.context, memory.back(), kBytes / 4));
      }
      if (inSoftware())  // where each allocation holds one of its own
        EXPECT_LE(Holdings::now().descriptors, descriptors + kRegions + 2);
      else
        EXPECT_LE(Holdings::now().descriptors, descriptors + 4);
      {
        std::vector<RemoteRegion> remotes;
        for (const Region& region : regions)
          remotes.push_back(exchange(meeting.peer, region, line));
        for (size_t n = 0; n < kRegions; ++n) {
          const Block block{&regions[n], 0, &remotes[n], 0, 4096};
          must(must(put(meeting.peer, {&block, 1}), "put").wait(kPatience), "wait");
        }
        line.meet();
      }
      for (size_t n = 0; n < kRegions; ++n) {
        must(meeting.context->unregister(regions[n], kPatience), "unregister");
        mustFree(memory[n]);
      }
    }
    line.meet();
    if (inSoftware()) expectNoMoreThan(before);  // pools that travel keep what they once had
    line.meet();
  };
  EXPECT_TRUE(runTwo([&](const Line& line) { side(0, line); },
                     [&](const Line& line) { side(1, line); }, 120));
}

// A pool that is created where another was destroyed is a pool of its own, though somebody still
// keeps what he knows of the first.
TEST(PoolMemory, APoolIsNotTakenForOneThatWasThereBefore) {
  PEERLANE_NEEDS_GPUS(1);
  constexpr int kPools = 6;
  EXPECT_TRUE(runTwo(
      [](const Line& line) {
        const Meeting meeting(0, line);
        std::vector<Region> kept;
        for (int i = 0; i < kPools; ++i) {
          cudaMemPool_t pool = makePool(meeting.device);
          std::byte* const memory = take(pool, kBytes);
          fill(memory, kBytes, static_cast<uint32_t>(i));
          kept.push_back(registered(*meeting.context, memory, kBytes));
          (void)exchange(meeting.peer, kept.back(), line);
          line.meet();
          must(meeting.context->unregister(kept.back(), kPatience), "unregister");
          mustFree(memory);
          mustCuda(cudaMemPoolDestroy(pool), "cudaMemPoolDestroy");
        }
      },
      [](const Line& line) {
        const Meeting meeting(1, line);
        const Region own =
            must(meeting.context->allocate(kBytes, {.device = meeting.device}), "allocate");
        for (int i = 0; i < kPools; ++i) {
          const RemoteRegion remote = exchange(meeting.peer, own, line);
          const Block block{&own, 0, &remote, 0, kBytes};
          must(must(get(meeting.peer, {&block, 1}), "get").wait(kPatience), "wait");
          EXPECT_EQ(wrongWords(own.data(), kBytes, static_cast<uint32_t>(i)), 0u);
          line.meet();
        }
      }));
}

// Memory that no other process can map says so: at the owner, and to the peer, whose bytes are
// staged.
TEST(PoolMemory, WhatCannotTravelSaysWhy) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runTwo(
      [](const Line& line) {
        const Meeting meeting(0, line);
        void* standard = nullptr;
        mustCuda(cudaMallocAsync(&standard, kBytes, nullptr), "cudaMallocAsync");
        mustCuda(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
        std::vector<Region> regions{
            registered(*meeting.context, static_cast<std::byte*>(standard), kBytes),
            registered(*meeting.context, take(makePool(meeting.device, false), kBytes), kBytes)};
        if (inSoftware())  // where it takes no memory
          regions.push_back(registered(*meeting.context,
                                       take(makePool(meeting.device), size_t{5300} << 20), kBytes));
        line.send(std::to_string(regions.size()));
        for (const Region& region : regions) {
          EXPECT_NE(region.description().find("not mapped by peers"), std::string::npos)
              << region.description();
          (void)exchange(meeting.peer, region, line);
        }
        line.meet();
      },
      [](const Line& line) {
        const Meeting meeting(1, line);
        const Region own =
            must(meeting.context->allocate(4096, {.device = meeting.device}), "allocate");
        const int count = std::stoi(line.receive());
        for (int i = 0; i < count; ++i) {
          const RemoteRegion remote = exchange(meeting.peer, own, line);
          must(remote.prepare(kPatience), "prepare");
          for (const char* part : {"staged", "not made for export"})
            EXPECT_NE(remote.description().find(part), std::string::npos) << remote.description();
          if (i == 2) continue;  // there is no memory behind it
          const Block block{&own, 0, &remote, kBytes - 4096, 4096};
          fill(own.data(), 4096, 3);
          must(must(put(meeting.peer, {&block, 1}), "put").wait(kPatience), "wait");
          clear(own.data(), 4096, 0);
          must(must(get(meeting.peer, {&block, 1}), "get").wait(kPatience), "wait");
          EXPECT_EQ(wrongWords(own.data(), 4096, 3), 0u);
        }
        line.meet();
      }));
}

// In one process, another GPU is given access to the pool: peer access of GPUs does not count.
TEST(PoolMemory, GpusOfOneProcessAreGivenAccess) {
  PEERLANE_NEEDS_GPUS(2);
  EXPECT_TRUE(runOne([](const Line&) {
    for (const bool exportable : {true, false}) {
      auto first = makeContext({gpu(0)});
      auto second = makeContext({gpu(1)});
      const Peer to = must(first->connect(second->ticket(), kPatience), "connect");
      const Peer from = must(second->accept(kPatience), "accept");
      const Region source = must(first->allocate(kBytes, {.device = gpu(0)}), "allocate");
      const Device device = gpu(1);
      const Region target = registered(*second, take(makePool(device, exportable), kBytes), kBytes);
      const RemoteRegion remote = must(to.importRegion(target.share()), "import");
      (void)gpu(0);
      fill(source.data(), kBytes, 4);
      (void)gpu(1);
      clear(target.data(), kBytes, 0);
      const Block block{&source, 0, &remote, 0, kBytes};
      must(must(put(to, {&block, 1}), "put").wait(kPatience), "wait");
      EXPECT_EQ(wrongWords(target.data(), kBytes, 4), 0u);
    }
  }));
}

}  // namespace
}  // namespace peerlane::gputest
