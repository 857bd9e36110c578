// SPDX-License-Identifier: Apache-2.0
//
// What is ended later: on whose GPU, and what becomes of it when the process exits.
#include "peerlane/memory/cuda/cuda_reclaimer.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <thread>

#include "peerlane/os/cuda_driver.h"
#include "tests/gpu/two_processes.h"
#include "tests/os/leak_check.h"
#include "tests/os/refused_calls.h"

namespace peerlane::gputest {
namespace {

using namespace std::chrono_literals;

void waitForReleases() {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (CudaReclaimer::instance().pending() != 0) {
    if (std::chrono::steady_clock::now() > end)
      die("a release", Status(Code::kTimeout, "it does not come"));
    std::this_thread::sleep_for(1ms);
  }
}

// Pinned host memory and descriptors are given back by a thread that has chosen no GPU.
TEST(CudaReclaimer, UsesNoOtherGpuThanItsOwn) {
  PEERLANE_NEEDS_GPUS(2);
  EXPECT_TRUE(runTwo(
      [](const Line& line) {
        const Meeting meeting(1, line);
        const Region region =
            must(meeting.context->allocate(1 << 20, {.device = meeting.device}), "allocate");
        exchange(meeting.peer, region, line);
        line.meet();
      },
      [](const Line& line) {
        const Device device = gpu(1);
        {
          auto context = makeContext({device});
          const Peer peer = meetPeer(*context, line, false);
          constexpr size_t kBlocks = 60'000, kBytes = 16;  // more than its memory has room for
          const Region region =
              must(context->allocate(kBlocks * kBytes, {.device = device}), "allocate");
          const RemoteRegion remote = exchange(peer, region, line);
          must(remote.prepare(kPatience), "prepare");
          std::vector<Block> blocks;
          for (size_t i = 0; i < kBlocks; ++i)
            blocks.push_back({&region, i * kBytes, &remote, (kBlocks - 1 - i) * kBytes, kBytes});
          Plan plan = must(Plan::create(peer, Direction::kPut, blocks), "plan");
          const cudaStream_t stream = makeStream();
          must(must(plan.post(DeviceStream::cuda(stream)), "post").wait(kPatience), "put");
          mustCuda(cudaStreamDestroy(stream), "cudaStreamDestroy");
        }
        waitForReleases();
        EXPECT_TRUE(hasContext(1));
        EXPECT_FALSE(hasContext(0));
        line.meet();
      }));
}

// Without memory: what the runtime has allocated on a GPU it uses until the process ends.
TEST(CudaReclaimer, HoldsTheGpuUntilThen) {
  PEERLANE_NEEDS_GPUS(1);
  const int last = gpuCount() - 1;
  EXPECT_TRUE(runOne([last](const Line&) {
    CudaReclaimer::instance().waitBegins();
    CudaReclaimer::instance().add(must(cuda::PrimaryContext::retainShared(last), "retain"), [last] {
      int chosen = -1;
      mustCuda(cudaGetDevice(&chosen), "cudaGetDevice");
      EXPECT_EQ(chosen, last);
      EXPECT_TRUE(hasContext(last));
    });
    EXPECT_TRUE(hasContext(last));
    CudaReclaimer::instance().waitEnded();
    waitForReleases();
    EXPECT_FALSE(hasContext(last));
  }));
}

// There the thread does not exist, and what it held stays held.
TEST(CudaReclaimer, AForkedChildExitsAtOnce) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runOne([](const Line&) {
    // Handlers of an exit run from the last one that was registered to the first.
    static std::chrono::steady_clock::time_point exitBegan;
    (void)std::atexit([] { _exit(std::chrono::steady_clock::now() - exitBegan < 900ms ? 0 : 9); });
    const auto gpu = must(cuda::PrimaryContext::retainShared(0), "retain");
    std::atomic<bool> begun{false}, isEnough{false};
    CudaReclaimer::instance().add(gpu, [&] {
      begun = true;
      while (!isEnough) std::this_thread::sleep_for(1ms);
    });
    (void)std::atexit([] { exitBegan = std::chrono::steady_clock::now(); });
    while (!begun) std::this_thread::sleep_for(1ms);
    const pid_t child = fork();
    if (child == 0) exitWithoutLeakCheck(0);
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
    isEnough = true;
    waitForReleases();
  }));
}

// A process may be short of memory, or of threads, for a while.
TEST(CudaReclaimer, AsksAgainForTheThreadThatItWasRefused) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runOne([](const Line&) {
    const auto gpu = must(cuda::PrimaryContext::retainShared(0), "retain");
    std::atomic<int> ended{0};
    const auto addOne = [&] { CudaReclaimer::instance().add(gpu, [&] { ++ended; }); };
    // Nothing but the stack of a thread has a size with this bit, and there is no memory for that.
    constexpr size_t kRefused = size_t{1} << 29;
    pthread_attr_t usual, large;
    pthread_getattr_default_np(&usual);
    pthread_getattr_default_np(&large);
    pthread_attr_setstacksize(&large, kRefused);
    pthread_setattr_default_np(&large);
    refuseCalls(SYS_mmap, ENOMEM, 1, kRefused);
    addOne();
    EXPECT_EQ(CudaReclaimer::instance().pending(), 1u);
    pthread_setattr_default_np(&usual);
    addOne();
    waitForReleases();
    EXPECT_EQ(ended, 2);
  }));
}

std::atomic<bool> exits{false};

// What is being ended is ended, and nothing else: the driver may be gone after that.
TEST(CudaReclaimerDeathTest, EndsNothingWhileTheProcessExits) {
  PEERLANE_NEEDS_GPUS(1);
  const auto exitBeside = [] {
    const auto gpu = must(cuda::PrimaryContext::retainShared(0), "retain");
    std::atomic<bool> begun{false};
    CudaReclaimer::instance().add(gpu, [&begun] {
      begun = true;
      while (!exits) std::this_thread::sleep_for(1ms);
      std::this_thread::sleep_for(200ms);  // long enough to be overtaken
      (void)!write(STDERR_FILENO, "first", 5);
    });
    CudaReclaimer::instance().add(gpu, [] { _exit(7); });
    (void)std::atexit([] { exits = true; });  // runs before what was registered before
    while (!begun) std::this_thread::sleep_for(1ms);
    std::exit(0);
  };
  EXPECT_EXIT(exitBeside(), ::testing::ExitedWithCode(0), "first");
}

}  // namespace
}  // namespace peerlane::gputest
