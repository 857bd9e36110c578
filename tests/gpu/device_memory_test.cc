// SPDX-License-Identifier: Apache-2.0
//
// What GPU memory may be registered, what is refused, and that nothing of it is lost or left over.
#include <cuda_runtime_api.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <new>
#include <thread>

#include "tests/gpu/two_processes.h"

namespace peerlane::gputest {
namespace {

size_t freeMemory() {
  size_t available = 0, total = 0;
  mustCuda(cudaMemGetInfo(&available, &total), "cudaMemGetInfo");
  return available;
}

size_t openDescriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}

void* cudaBytes(size_t bytes) {
  void* pointer = nullptr;
  mustCuda(cudaMalloc(&pointer, bytes), "cudaMalloc");
  return pointer;
}

TEST(DeviceMemory, WhatCannotBeUsedIsRefusedByName) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runOne([](const Line&) {
    auto context = makeContext({gpu(0)});
    const auto refusal = [&](void* pointer, size_t bytes) {
      return context->registerRegion(pointer, bytes, Access::kRemoteReadWrite).status();
    };
    void* managed = nullptr;
    mustCuda(cudaMallocManaged(&managed, 4096), "cudaMallocManaged");
    EXPECT_EQ(refusal(managed, 4096).code(), Code::kNotSupported);
    EXPECT_NE(refusal(managed, 4096).message().find("managed"), std::string_view::npos);
    void* freed = cudaBytes(size_t{4} << 20);
    mustCuda(cudaFree(freed), "cudaFree");
    EXPECT_FALSE(refusal(freed, 4096).isOk());
    void* small = cudaBytes(100);
    EXPECT_FALSE(refusal(small, size_t{64} << 20).isOk());
    ContextOptions options;
    options.devices = {{DeviceKind::kCuda, 99}};
    const Status missing = Context::create(options).status();
    EXPECT_EQ(missing.code(), Code::kInvalidArgument);
    EXPECT_NE(missing.message().find("cuda:99"), std::string_view::npos);
    // Pinned host memory is host memory.
    void* pinned = nullptr;
    mustCuda(cudaMallocHost(&pinned, 8192), "cudaMallocHost");
    EXPECT_TRUE(refusal(pinned, 8192).isOk()) << refusal(pinned, 8192).toString();
  }));
}

// No context appears on a GPU that the caller did not name. Others may use that one meanwhile and
// change what is free there: then fresh processes look again.
TEST(DeviceMemory, OtherGpusAreLeftAlone) {
  PEERLANE_NEEDS_GPUS(2);
  void* const shared = mmap(nullptr, sizeof(std::atomic<bool>), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto& isUnchanged = *new (shared) std::atomic<bool>(false);
  for (int i = 0; i < 20 && !isUnchanged; ++i)
    ASSERT_TRUE(runTwo(
        [](const Line& line) {
          line.meet();
          auto context = makeContext({{DeviceKind::kCuda, 0}});
          const Region region =
              must(context->allocate(1 << 20, {.device = {DeviceKind::kCuda, 0}}), "allocate");
          EXPECT_FALSE(hasContext(1));
          line.meet();
          line.meet();
        },
        [&](const Line& line) {
          mustCuda(cudaSetDevice(1), "cudaSetDevice");
          const size_t before = freeMemory();
          line.meet();
          line.meet();
          isUnchanged = freeMemory() == before;
          line.meet();
        }));
  EXPECT_TRUE(isUnchanged);
}

// In one process: two contexts, on one GPU and on two.
TEST(DeviceMemory, ContextsOfOneProcess) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runOne([](const Line&) {
    constexpr size_t kBytes = 5 << 20;
    for (const int other : {0, 1}) {
      const Device a = gpu(0), b = gpu(other);
      auto first = makeContext({a});
      auto second = makeContext({b});
      const Peer to = must(first->connect(second->ticket(), kPatience), "connect");
      const Peer from = must(second->accept(kPatience), "accept");
      const Region source = must(first->allocate(kBytes, {.device = a}), "allocate");
      mustCuda(cudaSetDevice(b.index), "cudaSetDevice");
      const Region target = must(
          second->registerRegion(cudaBytes(kBytes), kBytes, Access::kRemoteReadWrite), "register");
      const RemoteRegion remote = must(to.importRegion(target.share()), "import");
      mustCuda(cudaSetDevice(a.index), "cudaSetDevice");
      fill(source.data(), kBytes, 4);
      mustCuda(cudaSetDevice(b.index), "cudaSetDevice");
      const Block block{&source, 0, &remote, 0, kBytes};
      for (const Engine engine : {Engine::kSm, Engine::kCe}) {
        clear(target.data(), kBytes, 0);
        auto transfer =
            must(put(to, {&block, 1}, {.notify = {.signal = 0}, .engine = engine}), "put");
        must(transfer.wait(kPatience), "wait");
        EXPECT_EQ(wrongWords(target.data(), kBytes, 4), 0u);
      }
      EXPECT_EQ(must(Signal::create(from, 0), "signal").value(), 2u);
    }
  }));
}

// Registered, imported, written, taken back, a thousand times: nothing grows.
TEST(DeviceMemory, CyclesLeaveNothing) {
  PEERLANE_NEEDS_GPUS(1);
  constexpr int kCycles = 1000;
  constexpr size_t kBytes = 3 << 20;
  const auto side = [](int index, const Line& line) {
    const Device device = gpu(index);
    auto context = makeContext({device});
    const Peer peer = meetPeer(*context, line, index == 1);
    size_t memory = 0, descriptors = 0;
    for (int i = 0; i < kCycles; ++i) {
      if (i == 50) {
        mustCuda(cudaDeviceSynchronize(), "synchronize");
        memory = freeMemory();
        descriptors = openDescriptors();
      }
      const bool vmm = i % 2 == 0;
      void* raw = vmm ? nullptr : cudaBytes(kBytes);
      const Region region =
          vmm ? must(context->allocate(kBytes, {.device = device}), "allocate")
              : must(context->registerRegion(raw, kBytes, Access::kRemoteReadWrite), "register");
      {
        const RemoteRegion remote = exchange(peer, region, line);
        const Block block{&region, 0, &remote, 0, 4096};
        must(must(put(peer, {&block, 1}), "put").wait(kPatience), "wait");
      }
      line.meet();
      must(context->unregister(region, kPatience), "unregister");
      if (!vmm) mustCuda(cudaFree(raw), "cudaFree");
    }
    line.meet();
    // Legacy handles are closed a little later, by the reclaimer.
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (freeMemory() + (size_t{4} << 20) < memory && std::chrono::steady_clock::now() < end)
      usleep(10000);
    EXPECT_GE(freeMemory() + (size_t{4} << 20), memory);
    EXPECT_LE(openDescriptors(), descriptors + 2);
    line.meet();
  };
  EXPECT_TRUE(runTwo([&](const Line& line) { side(0, line); },
                     [&](const Line& line) { side(1, line); }, 120));
}

// Memory that was freed, or freed and allocated anew, without being unregistered.
TEST(DeviceMemory, FreedBehindOurBackIsCaught) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runTwo(
      [](const Line& line) {
        const Device device = gpu(0);
        auto context = makeContext({device});
        const Peer peer = meetPeer(*context, line, false);
        constexpr size_t kBytes = 32 << 20;
        void* raw = cudaBytes(kBytes);
        const Region region =
            must(context->registerRegion(raw, kBytes, Access::kRemoteReadWrite), "register");
        const RemoteRegion remote = exchange(peer, region, line);
        const Block block{&region, 0, &remote, 0, kBytes};
        must(must(put(peer, {&block, 1}), "put").wait(kPatience), "wait");
        mustCuda(cudaFree(raw), "cudaFree");
        void* again = cudaBytes(kBytes);  // mostly the same address
        const Status refused = put(peer, {&block, 1}).status();
        EXPECT_EQ(refused.code(), Code::kRevoked) << refused.toString();
        mustCuda(cudaFree(again), "cudaFree");
        EXPECT_FALSE(put(peer, {&block, 1}).isOk());
        line.meet();
      },
      [](const Line& line) {
        const Device device = gpu(1);
        auto context = makeContext({device});
        const Peer peer = meetPeer(*context, line, true);
        const Region region = must(context->allocate(32 << 20, {.device = device}), "allocate");
        const RemoteRegion remote = exchange(peer, region, line);
        line.meet();
      }));
}

// An owner that never posts again: its sweep notices, and both sides hear of it.
TEST(DeviceMemory, FreedBehindOurBackIsToldToThePeer) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runTwo(
      [](const Line& line) {
        const Device device = gpu(0);
        auto context = makeContext({device});
        const Peer peer = meetPeer(*context, line, false);
        constexpr size_t kBytes = 4 << 20;
        void* raw = cudaBytes(kBytes);
        const Region region =
            must(context->registerRegion(raw, kBytes, Access::kRemoteReadWrite), "register");
        (void)exchange(peer, region, line);
        line.meet();  // the peer has imported it
        mustCuda(cudaFree(raw), "cudaFree");
        line.meet();
        EXPECT_NE(context->dump().find("bytes revoked"), std::string::npos) << context->dump();
        must(context->unregister(region, kPatience), "unregister");
        line.meet();
      },
      [](const Line& line) {
        const Device device = gpu(1);
        auto context = makeContext({device});
        const Peer peer = meetPeer(*context, line, true);
        const Region region = must(context->allocate(4 << 20, {.device = device}), "allocate");
        const RemoteRegion remote = exchange(peer, region, line);
        must(remote.prepare(kPatience), "prepare");
        line.meet();
        // Nothing is copied while it may be gone: to make a plan goes through the same gates.
        const auto deadline = std::chrono::steady_clock::now() + kPatience;
        Status told;
        const Block block{&region, 0, &remote, 0, 4096};
        while (told.code() != Code::kRevoked && std::chrono::steady_clock::now() < deadline) {
          auto plan = Plan::create(peer, Direction::kPut, {&block, 1});
          told = plan.status();
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
        EXPECT_EQ(told.code(), Code::kRevoked) << told.toString();
        EXPECT_NE(told.message().find("freed"), std::string::npos) << told.toString();
        line.meet();
        line.meet();
      }));
}

// While a stream waits for one peer, others come, are written to, and go.
TEST(DeviceMemory, NothingWaitsForAWaitingStream) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runTwo(
      [](const Line& line) {
        const Device device = gpu(0);
        auto context = makeContext({device});
        const Peer peer = meetPeer(*context, line, false);
        cudaStream_t stream = nullptr;
        mustCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
        const Signal signal = must(Signal::create(peer, 0), "signal");
        const Transfer waiting = must(signal.waitOn(DeviceStream::cuda(stream), 1), "waitOn");
        const auto begin = std::chrono::steady_clock::now();
        // Another peer of the same process as the first, with both kinds of memory.
        for (int i = 0; i < 3; ++i) {
          const Peer second = meetPeer(*context, line, false);
          void* raw = cudaBytes(4 << 20);
          const Region mine =
              must(context->registerRegion(raw, 4 << 20, Access::kRemoteReadWrite), "register");
          {
            const RemoteRegion remote = exchange(second, mine, line);
            const Block block{&mine, 0, &remote, 0, 4 << 20};
            must(must(put(second, {&block, 1}, {.notify = {.signal = 0}}), "put").wait(kPatience),
                 "wait");
          }
          line.meet();
          must(context->unregister(mine, kPatience), "unregister");
          line.meet();
        }
        // A call that waits for the stream does not return in time, and `must` ends the side. On a
        // device this also finds shorter waits; GPUs in software are too slow for that.
        if (!inSoftware()) {
          // clock: for real GPUs alone; a call that waits for the stream takes the 20 s of a wait
          EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
        }
        EXPECT_FALSE(waiting.done());
        line.send("go");
        must(waiting.wait(kPatience), "wait");
        line.meet();
      },
      [](const Line& line) {
        const Device device = gpu(1);
        auto context = makeContext({device});
        const Peer first = meetPeer(*context, line, true);
        for (int i = 0; i < 3; ++i) {
          auto another = makeContext({device});
          const Peer second = meetPeer(*another, line, true);
          void* raw = cudaBytes(4 << 20);
          const Region mine =
              must(another->registerRegion(raw, 4 << 20, Access::kRemoteReadWrite), "register");
          {
            const RemoteRegion remote = exchange(second, mine, line);
            line.meet();
          }
          must(another->unregister(mine, kPatience), "unregister");
          line.meet();
        }
        line.receive();
        must(addSignal(first, 0), "addSignal");
        line.meet();
      }));
}

// The peer dies in the middle of transfers: told within a second, and the stream is usable.
TEST(DeviceMemory, KilledPeersAreToldAndLeaveNothing) {
  PEERLANE_NEEDS_GPUS(1);
  constexpr int kTimes = 8;
  const size_t kBytes = size_t{inSoftware() ? 8u : 256u} << 20;
  EXPECT_TRUE(runOne(
      [kBytes](const Line&) {
        // Victims come from a process that has not touched CUDA: forked before.
        int ends[kTimes][2];
        pid_t victims[kTimes];
        for (int i = 0; i < kTimes; ++i) {
          if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends[i]) != 0) std::_Exit(5);
          victims[i] = fork();
          if (victims[i] != 0) continue;
          const Line line(ends[i][1]);
          line.receive();  // its turn
          const Device device = gpu(1);
          auto context = makeContext({device});
          const Peer peer = meetPeer(*context, line, true);
          const Region region = must(context->allocate(kBytes, {.device = device}), "allocate");
          const RemoteRegion remote = exchange(peer, region, line);
          pause();
        }
        const Device device = gpu(0);
        auto context = makeContext({device});
        const Region region = must(context->allocate(kBytes, {.device = device}), "allocate");
        cudaStream_t stream = nullptr;
        mustCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
        size_t memory = 0;
        for (int i = 0; i < kTimes; ++i) {
          const Line line(ends[i][0]);
          line.send("go");
          const Peer peer = meetPeer(*context, line, false);
          const RemoteRegion remote = exchange(peer, region, line);
          must(remote.prepare(), "prepare");
          const Block block{&region, 0, &remote, 0, kBytes};
          std::vector<Transfer> transfers;
          for (int n = 0; n < 40; ++n)
            transfers.push_back(must(put(peer, {&block, 1},
                                         {.notify = {.signal = 1},
                                          .deviceStream = DeviceStream::cuda(stream),
                                          .engine = n % 2 == 0 ? Engine::kCe : Engine::kSm}),
                                     "put"));
          const Signal signal = must(Signal::create(peer, 0), "signal");
          const Transfer waiting = must(signal.waitOn(DeviceStream::cuda(stream), 1), "waitOn");
          kill(victims[i], SIGKILL);
          const Status ended = waiting.wait(kPatience);
          EXPECT_EQ(ended.code(), Code::kPeerLost) << ended.toString();
          for (const Transfer& transfer : transfers) {
            const Code code = transfer.wait(kPatience).code();
            EXPECT_TRUE(code == Code::kOk || code == Code::kPeerLost);
          }
          mustCuda(cudaStreamSynchronize(stream), "stream is usable");
          EXPECT_FALSE(put(peer, {&block, 1}).isOk());
          if (i == 1) memory = freeMemory();
        }
        const auto end = std::chrono::steady_clock::now() + kPatience;
        while (freeMemory() + (size_t{8} << 20) < memory && std::chrono::steady_clock::now() < end)
          usleep(10000);
        EXPECT_GE(freeMemory() + (size_t{8} << 20), memory);
      },
      120));
}

}  // namespace
}  // namespace peerlane::gputest
