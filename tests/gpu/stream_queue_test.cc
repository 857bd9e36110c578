// SPDX-License-Identifier: Apache-2.0
//
// What the port queue of a GPU says of copies that are under way, and of a device that has failed.
#include "peerlane/program/stream/submit/stream_queue.h"

#include <cuda_runtime_api.h>

#include <chrono>

#include "peerlane/program/kernel/launch/word_kernel.h"
#include "tests/gpu/two_processes.h"

namespace peerlane::gputest {
namespace {

using Advance = PortQueue::Advance;

// The proxy polls while a queue is pending. Long copies are; nobody is told of the end of short
// ones, which is soon.
TEST(StreamQueue, IsPendingWhileLongCopiesAreUnderWay) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runOne([](const Line&) {
    constexpr uint64_t kShort = 4096, kLong = 64 << 20;
    const auto gpu = must(cuda::PrimaryContext::retainShared(0), "retain");
    mustCuda(cudaSetDevice(0), "cudaSetDevice");
    void *from = nullptr, *to = nullptr;
    mustCuda(cudaMalloc(&from, kLong), "cudaMalloc");
    mustCuda(cudaMalloc(&to, kLong), "cudaMalloc");
    const auto queue = must(stream::makeStreamQueue(gpu), "queue");
    const auto copy = [&](uint64_t bytes) {
      const Status asked = queue->copy({.address = static_cast<std::byte*>(to)},
                                       {.address = static_cast<std::byte*>(from)}, bytes);
      EXPECT_TRUE(asked.isOk()) << asked.toString();
    };
    copy(kShort);
    EXPECT_EQ(queue->advance(), Advance::kIdle);
    bool wasUnderWay = false;
    for (int round = 0; round < 3 || (!wasUnderWay && round < 10); ++round) {
      for (int i = 0; i < 20; ++i) copy(kLong);
      EXPECT_EQ(queue->advance(), Advance::kPending);
      copy(kShort);
      // The copies have ended by now if this thread was off the processor for long.
      Advance now = queue->advance();
      wasUnderWay = wasUnderWay || now == Advance::kPending;
      bool isTold = false;
      const auto end = std::chrono::steady_clock::now() + kPatience;
      for (; now != Advance::kIdle; now = queue->advance()) {
        isTold = isTold || now == Advance::kMoved;
        if (std::chrono::steady_clock::now() > end)
          die("a long copy", Status(Code::kTimeout, "nobody tells of its end"));
      }
      EXPECT_TRUE(isTold);
    }
    EXPECT_TRUE(wasUnderWay);
  }));
}

// A failed device stores nothing any more: the queue refuses work, instead of having no room for it
// for ever.
TEST(StreamQueue, RefusesWorkOnceTheDeviceHasFailed) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runOne([](const Line&) {
    const auto gpu = must(cuda::PrimaryContext::retainShared(0), "retain");
    mustCuda(cudaSetDevice(0), "cudaSetDevice");
    void* memory = nullptr;
    mustCuda(cudaMalloc(&memory, 8192), "cudaMalloc");
    const auto queue = must(stream::makeStreamQueue(gpu), "queue");
    const auto copy = [&] {
      auto* const bytes = static_cast<std::byte*>(memory);
      return queue->copy({.address = bytes}, {.address = bytes + 4096}, 4096);
    };
    EXPECT_TRUE(copy().isOk());
    kernel::WordLaunch bad;
    bad.stream = makeStream();
    bad.tail.stores[0] = {reinterpret_cast<uint64_t*>(uintptr_t{4096}), {nullptr, 1}};
    bad.tail.storeCount = 1;
    must(kernel::loadWordKernels(), "loading");
    must(kernel::launchWords(bad), "a store to nowhere");
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (queue->health().isOk()) {
      (void)copy();  // an idle queue asks the device nothing
      (void)queue->isIdle();
      if (std::chrono::steady_clock::now() > end)
        die("a failed device", Status(Code::kTimeout, "the queue does not notice"));
    }
    EXPECT_EQ(queue->health().code(), Code::kSystem);
    for (int i = 0; i < 1000; ++i) EXPECT_EQ(copy().code(), Code::kSystem);
    EXPECT_TRUE(queue->hasRoom());
    EXPECT_TRUE(queue->isIdle());
  }));
}

// The driver may be asked also while a thread of the program captures.
TEST(StreamQueue, LetsOthersCapture) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runOne([](const Line&) {
    const auto gpu = must(cuda::PrimaryContext::retainShared(0), "retain");
    mustCuda(cudaSetDevice(0), "cudaSetDevice");
    void* memory = nullptr;
    mustCuda(cudaMalloc(&memory, 64), "cudaMalloc");
    const auto queue = must(stream::makeStreamQueue(gpu), "queue");
    const cudaStream_t captured = makeStream();
    mustCuda(cudaStreamBeginCapture(captured, cudaStreamCaptureModeGlobal), "begin");
    mustCuda(cudaMemsetAsync(memory, 0, 64, captured), "cudaMemsetAsync");
    EXPECT_TRUE(queue->isIdle());
    EXPECT_TRUE(queue->health().isOk()) << queue->health().toString();
    cudaGraph_t graph = nullptr;
    mustCuda(cudaStreamEndCapture(captured, &graph), "end");
    mustCuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
  }));
}

}  // namespace
}  // namespace peerlane::gputest
