// SPDX-License-Identifier: Apache-2.0
//
// Staged transfers where streams share hardware queues, in which everything stands behind a stream
// that waits: many or one of them, streams of the user's and none, posts of several threads, and
// what a peer asks for while streams wait.
#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "peerlane/os/cuda_driver.h"
#include "tests/gpu/two_processes.h"

namespace peerlane::gputest {
namespace {

// Half of them is more than there are queues.
constexpr size_t kParts = 32;
constexpr size_t kPart = size_t{64} << 10;
constexpr size_t kBytes = kParts * kPart;

// For the GPU's first use in this process.
void configure(const std::string& queues) {
  setenv("PEERLANE_STAGING_BYTES", "262144", 1);
  if (queues == "OneQueue") setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
}

class StagedQueues : public ::testing::TestWithParam<const char*> {
 protected:
  // One side fetches from the other one's memory, which it cannot reach.
  static bool fetch(const std::function<void(const Side& side)>& body) {
    return runTwo(
        [&](const Line& line) {
          configure(GetParam());
          const Side side(0, line, kBytes, Memory::kVmm);
          (void)line.receive();
          body(side);
          EXPECT_EQ(wrongWords(side.region.data(), kBytes, 77), 0u);
          line.send("end");
        },
        [&](const Line& line) {
          configure(GetParam());
          const Side side(1, line, kBytes, Memory::kPrivate);
          fill(side.region.data(), kBytes, 77);
          line.send("filled");
          (void)line.receive();
        });
  }
  static Transfer fetchPart(const Side& side, size_t part, DeviceStream stream) {
    const Block block = side.block(part * kPart, kPart);
    PostOptions options;
    options.deviceStream = stream;
    return must(get(side.peer, {&block, 1}, options), "get");
  }
};

INSTANTIATE_TEST_SUITE_P(Queues, StagedQueues, ::testing::Values("ManyQueues", "OneQueue"),
                         [](const auto& tested) { return std::string(tested.param); });

// Those without a stream are carried out piece by piece while streams of the others wait.
TEST_P(StagedQueues, WithStreamsAndWithout) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(fetch([](const Side& side) {
    std::vector<Transfer> posted;
    for (size_t i = 0; i < kParts; ++i)
      posted.push_back(
          fetchPart(side, i, i % 2 == 0 ? side.deviceStream(makeStream()) : DeviceStream()));
    for (const Transfer& transfer : posted) must(transfer.wait(kPatience), "wait");
  }));
}

// What each enqueues lies in one piece in a queue.
TEST_P(StagedQueues, PostedByThreads) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(fetch([](const Side& side) {
    constexpr size_t kThreads = 8;
    std::vector<std::thread> threads;
    for (size_t i = 0; i < kThreads; ++i)
      threads.emplace_back([&side, i] {
        mustCuda(cudaSetDevice(side.device.index), "cudaSetDevice");
        const DeviceStream stream = side.deviceStream(makeStream());
        std::vector<Transfer> posted;
        for (int round = 0; round < 3; ++round)
          for (size_t part = i; part < kParts; part += kThreads)
            posted.push_back(fetchPart(side, part, stream));
        for (const Transfer& transfer : posted) must(transfer.wait(kPatience), "wait");
      });
    for (std::thread& thread : threads) thread.join();
  }));
}

// Whether a stream goes on while one of another priority waits, with one hardware queue.
bool goesPastWaiting(int priority) {
  return runOne([priority](const Line&) {
    configure("OneQueue");
    setenv("SOFTWARE_GPU_PRIORITIES", "apart", 1);
    (void)gpu(0);
    uint64_t* words = nullptr;
    mustCuda(cudaMallocHost(reinterpret_cast<void**>(&words), 128), "cudaMallocHost");
    std::atomic_ref<uint64_t> gate(words[0]), passed(words[8]);
    gate = passed = 0;
    const cudaStream_t waiting = makeStream();
    cudaStream_t other = nullptr;
    mustCuda(cudaStreamCreateWithPriority(&other, cudaStreamNonBlocking, priority), "stream");
    const auto at = [](uint64_t& word) { return reinterpret_cast<CUdeviceptr>(&word); };
    const cuda::Driver& driver = cuda::api();
    mustCuda(driver.cuStreamWaitValue64(waiting, at(words[0]), 1, CU_STREAM_WAIT_VALUE_GEQ),
             "wait");
    mustCuda(driver.cuStreamWriteValue64(other, at(words[8]), 1, 0), "store");
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    while (passed == 0 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    const bool is = passed == 1;
    gate = 1;
    mustSync(waiting);
    mustSync(other);
    std::_Exit(is ? 0 : 1);
  });
}

// Each side's only queue is held up by a stream that waits for the other side, which needs bytes
// from here first.
TEST(StagedSubmissions, GetPastStreamsThatWait) {
  PEERLANE_NEEDS_GPUS(1);
  if (!goesPastWaiting(-4))
    GTEST_SKIP() << "streams of another priority share the hardware queues of this GPU";
  const auto sideOf = [](int index) {
    return [index](const Line& line) {
      configure("OneQueue");
      setenv("SOFTWARE_GPU_PRIORITIES", "apart", 1);
      constexpr size_t kHalf = kBytes / 2;
      const auto seed = static_cast<uint32_t>(50 + index);
      const Side side(index, line, kBytes, Memory::kPrivate);
      fill(side.region.data(), kHalf, seed);
      const Signal signal = must(Signal::create(side.peer, 1), "signal");
      const Block block{&side.region, kHalf, &side.remote, 0, kHalf};
      line.meet();
      const Transfer gate = must(signal.waitOn(side.deviceStream(), 1), "waitOn");
      line.meet();
      must(must(get(side.peer, {&block, 1}), "get").wait(kPatience), "without a stream");
      must(addSignal(side.peer, 1), "addSignal");
      must(gate.wait(kPatience), "gate");
      EXPECT_EQ(wrongWords(side.region.data() + kHalf, kHalf, 101 - seed), 0u);
      clear(side.region.data() + kHalf, kHalf, 0);
      line.meet();
      PostOptions onStream;
      onStream.deviceStream = side.deviceStream();
      must(must(get(side.peer, {&block, 1}, onStream), "get").wait(kPatience), "on a stream");
      EXPECT_EQ(wrongWords(side.region.data() + kHalf, kHalf, 101 - seed), 0u);
      line.meet();
    };
  };
  EXPECT_TRUE(runTwo(sideOf(0), sideOf(1)));
}

// The owner's other threads post to a stream that takes no more.
TEST(StagedSubmissions, GetPastThreadsThatPost) {
  PEERLANE_NEEDS_GPUS(1);
  if (!goesPastWaiting(-4))
    GTEST_SKIP() << "streams of another priority share the hardware queues of this GPU";
  const auto fetching = [](const Line& line) {
    configure("ManyQueues");
    const Side side(0, line, kBytes, Memory::kVmm);
    const Block part = side.block(0, kPart);
    // Host memory is pinned for the first one, which a full queue would stop.
    must(must(get(side.peer, {&part, 1}), "get").wait(kPatience), "wait");
    clear(side.region.data(), kPart, 0);
    line.send("pinned");
    (void)line.receive();
    must(must(get(side.peer, {&part, 1}), "get").wait(kPatience), "wait");
    EXPECT_EQ(wrongWords(side.region.data(), kPart, 77), 0u);
    must(addSignal(side.peer, 1), "addSignal");
    (void)line.receive();
  };
  const auto owning = [](const Line& line) {
    configure("ManyQueues");
    setenv("SOFTWARE_GPU_PRIORITIES", "apart", 1);
    const Side side(1, line, kBytes, Memory::kPrivate);
    fill(side.region.data(), kBytes, 77);
    (void)line.receive();
    must(side.remote.prepare(kPatience), "prepare");
    const Signal signal = must(Signal::create(side.peer, 1), "signal");
    const Transfer gate = must(signal.waitOn(side.deviceStream(), 1), "waitOn");
    constexpr size_t kPosts = 2000;
    std::atomic<size_t> made{0};
    std::thread poster([&] {
      mustCuda(cudaSetDevice(side.device.index), "cudaSetDevice");
      PostOptions options;
      options.deviceStream = side.deviceStream();
      const Block little = side.block(kBytes - 4096, 4096);
      for (; made < kPosts; ++made) (void)must(put(side.peer, {&little, 1}, options), "put");
    });
    EXPECT_TRUE(stopsShort(made, kPosts));
    line.send("full");
    must(gate.wait(kPatience), "gate");
    poster.join();
    mustSync(side.stream);
    line.send("end");
  };
  EXPECT_TRUE(runTwo(fetching, owning));
}

}  // namespace
}  // namespace peerlane::gputest
