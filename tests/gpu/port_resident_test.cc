// SPDX-License-Identifier: Apache-2.0
//
// The resident port: kernels that copy for other kernels, and never stand in anybody's way.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "peerlane/session/context/farewell.h"
#include "tests/gpu/port_bodies.h"
#include "tests/gpu/port_end.h"

namespace peerlane::gputest {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

bool isSoftware() {
  return std::getenv("SOFTWARE_GPUS") != nullptr;
}

PortEndOptions withResidentPort(size_t bytes) {
  PortEndOptions options{.bytes = bytes};
  options.service.residentBlocks = isSoftware() ? 2 : 4;
  for (uint64_t& limit : options.service.inlineBytes) limit = 64;
  return options;
}

class PortResident : public testing::TestWithParam<Sides> {};

// By it alone, and by it where the size says so; asleep at the beginning of each.
TEST_P(PortResident, PingPong) {
  PEERLANE_NEEDS(GetParam());
  EXPECT_TRUE(runSides(
      GetParam(),
      [](int index, const Line& line) {
        const PortEnd end(index, line, withResidentPort(isSoftware() ? 64 << 10 : 4 << 20));
        for (const uint64_t bytes : {4, 4096, isSoftware() ? 32 << 10 : 1 << 20})
          for (const PortEngine engine : {PortEngine::kSm, PortEngine::kAuto})
            for (const PortForm form : {PortForm::kThread, PortForm::kWarp, PortForm::kBlock}) {
              end.run(PortBody::kPingPong, form, end.job(bytes, isSoftware() ? 6 : 1000, engine));
              line.meet();
            }
      },
      200));
}

// Numbered messages that change between all who can carry them: inline, the resident port, which
// sleeps now and then, and the copy engine. Signals stay behind what they tell of.
TEST_P(PortResident, MessagesByEverybodyInTurn) {
  PEERLANE_NEEDS(GetParam());
  EXPECT_TRUE(runSides(
      GetParam(),
      [](int index, const Line& line) {
        constexpr uint64_t kSlots = 64, kMost = 64 << 10;
        PortEndOptions options = withResidentPort(kSlots * kMost);
        options.service.residentBytes = 16 << 10;
        const PortEnd end(index, line, options);
        for (const PortForm form : {PortForm::kThread, PortForm::kBlock}) {
          PortJob job = end.job(kMost, isSoftware() ? 128 : 20'032, PortEngine::kAuto);
          job.oddBytes = 48;
          job.slots = kSlots;
          job.batch = 16;
          if (index == 1) std::swap(job.channel, job.second);
          end.run(PortBody::kStress, form, job, 2);
          end.clearNotes();
          line.meet();
        }
      },
      200));
}

// For what wakes the port, after the bytes that are looked at.
constexpr uint64_t kBesideBytes = 4096;

// What side 0 puts in this round.
void makePortWords(const PortEnd& end, uint64_t bytes, uint64_t round) {
  std::vector<uint32_t> words(bytes / 4);
  for (uint64_t i = 0; i < words.size(); ++i) words[i] = portWord(i, round, 0);
  mustCuda(cudaMemcpyAsync(end.out.data(), words.data(), bytes, cudaMemcpyDefault, end.stream),
           "copy");
  mustSync(end.stream);
}

// What it has taken is there when a removal has returned, whatever memory that was of.
TEST_P(PortResident, ARemovalWaitsForIt) {
  PEERLANE_NEEDS(GetParam());
  EXPECT_TRUE(runSides(GetParam(), [](int index, const Line& line) {
    const uint64_t bytes = isSoftware() ? 256 << 10 : 16 << 20;
    const PortEnd end(index, line, withResidentPort(bytes + kBesideBytes));
    const auto taken = [&] {
      port::SemaphoreState state;
      mustCuda(cudaMemcpyAsync(&state, end.semaphores[0].deviceHandle().state, sizeof(state),
                               cudaMemcpyDefault, end.stream),
               "copy");
      mustSync(end.stream);
      return state.residentPushed;
    };
    int looks = 0;
    for (uint64_t round = 1; round <= 10; ++round) {
      // Awake, by a semaphore of its own, when the put right after it asks. One block makes 16 MiB
      // more slowly than a port without work falls asleep, so they are there before.
      const uint64_t before = taken();
      if (index == 0) makePortWords(end, bytes, round);
      PortJob waking = end.job(4, isSoftware() ? 3 : 100, PortEngine::kSm, 1);
      waking.at = bytes;
      end.launch(PortBody::kPingPong, PortForm::kThread, waking);
      if (index == 0)
        end.launch(PortBody::kPutMade, PortForm::kBlock, end.job(bytes, 1, PortEngine::kSm));
      end.join();
      if (index == 0) {
        const bool isTaken = taken() > before;
        // What it refused may still be on its way to the proxy.
        if (!isTaken) must(end.put().flush(), "flush");
        const MemoryId other = must(end.service->addMemory(end.in), "addMemory");
        must(end.service->removeMemory(other), "removeMemory");
        line.send(isTaken ? "look" : "skip");
      } else if (line.receive() == "look") {
        ++looks;
        std::vector<uint32_t> seen(bytes / 4);
        mustCuda(cudaMemcpyAsync(seen.data(), end.in.data(), bytes, cudaMemcpyDefault, end.stream),
                 "copy");
        mustSync(end.stream);
        uint64_t wrong = 0;
        for (uint64_t i = 0; i < seen.size(); ++i)
          wrong += seen[i] != portWord(i, round, 0) ? 1 : 0;
        EXPECT_EQ(wrong, 0u) << "round " << round;
      }
      line.meet();
    }
    if (index == 1 && !isSoftware()) {  // whose threads start too slowly to find it awake
      EXPECT_GT(looks, 0) << "it was never awake";
    }
  }));
}

INSTANTIATE_TEST_SUITE_P(Sides, PortResident,
                         testing::Values(Sides::kOneProcess, Sides::kTwoProcesses),
                         [](const auto& each) {
                           return each.param == Sides::kOneProcess ? "OneProcess" : "TwoProcesses";
                         });

// The kernel by itself, in one launch with those who ask it: what it takes it serves, once.
TEST(PortResidentKernel, ServesWhatItTakes) {
  PEERLANE_NEEDS(Sides::kOneProcess);
  EXPECT_TRUE(runOne([](const Line&) {
    constexpr uint64_t kBytes = 4096, kAll = kBytes * kResidentAskers;
    // One piece of memory: the state, three counts on lines of their own, bytes there and here.
    constexpr uint64_t kCountsAt = (sizeof(port::ResidentState) + 255) / 256 * 256;
    constexpr uint64_t kToAt = kCountsAt + 4096, kFromAt = kToAt + kAll;
    mustCuda(cudaSetDevice(gpu(0).index), "cudaSetDevice");
    const cudaStream_t stream = makeStream();
    void* memory = nullptr;
    void* left = nullptr;
    mustCuda(cudaMalloc(&memory, kFromAt + kAll), "cudaMalloc");
    mustCuda(cudaHostAlloc(&left, sizeof(uint64_t), cudaHostAllocMapped), "cudaHostAlloc");
    auto* const bytes = static_cast<std::byte*>(memory);
    clear(bytes, kFromAt, 0);
    fill(bytes + kFromAt, kAll, 7);
    *static_cast<uint64_t*>(left) = 0;
    ResidentRun run;
    run.blocks = 3;
    run.from = bytes + kFromAt;
    run.to = bytes + kToAt;
    run.bytes = kBytes;
    auto* const counts = reinterpret_cast<uint64_t*>(bytes + kCountsAt);
    run.signals = counts;
    run.done = counts + 8;
    run.asked = counts + 16;
    constexpr uint64_t kSlow = 1'000'000'000;  // threads may be off the processor for so long
    uint64_t served = 0;
    bool wasServed[kResidentAskers] = {};
    for (uint64_t launch = 1; launch <= 3; ++launch) {
      run.job = {.state = reinterpret_cast<port::ResidentState*>(bytes),
                 .left = static_cast<uint64_t*>(left),
                 .launch = launch,
                 .idle = isSoftware() ? kSlow : 200'000,
                 .longest = isSoftware() ? kSlow : 3'000'000,
                 .patience = 5'000'000'000};
      launchResidentRun(run, stream);
      mustSync(stream);
      EXPECT_EQ(port::loadAcquire(run.job.left), launch);
      uint64_t seen[16 + kResidentAskers];
      mustCuda(cudaMemcpy(seen, counts, sizeof(seen), cudaMemcpyDeviceToHost), "cudaMemcpy");
      for (uint32_t i = 0; i < kResidentAskers; ++i) {
        served += seen[16 + i];
        wasServed[i] |= seen[16 + i] != 0;
      }
      EXPECT_GT(served, 0u);
      EXPECT_EQ(seen[0], served) << "signals";
      EXPECT_EQ(seen[8], served) << "the position behind the last one";
      clear(counts + 16, kResidentAskers * sizeof(uint64_t), 0);
    }
    std::vector<std::byte> to(kAll), from(kAll);
    mustCuda(cudaMemcpy(to.data(), run.to, kAll, cudaMemcpyDeviceToHost), "cudaMemcpy");
    mustCuda(cudaMemcpy(from.data(), run.from, kAll, cudaMemcpyDeviceToHost), "cudaMemcpy");
    for (uint32_t i = 0; i < kResidentAskers; ++i) {
      const auto at = static_cast<std::ptrdiff_t>(i * kBytes), size = std::ptrdiff_t{kBytes};
      EXPECT_EQ(std::equal(to.begin() + at, to.begin() + at + size, from.begin() + at),
                wasServed[i]);
    }
    EXPECT_EQ(cudaFree(memory), cudaSuccess);
    EXPECT_EQ(cudaFreeHost(left), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  }));
}

// Whoever waits for the whole GPU while it is resident waits shortly.
class PortResidentCalls : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Queues, PortResidentCalls, testing::Values("32", "1"));

TEST_P(PortResidentCalls, ThatWaitForTheGpuReturn) {
  PEERLANE_NEEDS(Sides::kOneProcess);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", GetParam(), 1);  // for the sides
  setenv("CUDA_MODULE_LOADING", "LAZY", 1);
  EXPECT_TRUE(runSides(Sides::kOneProcess, [](int index, const Line& line) {
    const PortEnd end(index, line, withResidentPort(64 << 10));
    const auto isShort = [&](const char* what, const auto& call) {
      end.run(PortBody::kPingPong, PortForm::kThread,
              end.job(4096, isSoftware() ? 6 : 200, PortEngine::kSm));
      const auto begin = Clock::now();
      EXPECT_EQ(call(), cudaSuccess) << what;
      const auto took = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin);
      // With a port that stays, the call never returns.
      std::printf("%s: %.3f ms\n", what, static_cast<double>(took.count()) / 1e3);
      line.meet();
    };
    void* memory = nullptr;
    ASSERT_EQ(cudaMalloc(&memory, 1 << 20), cudaSuccess);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    ASSERT_EQ(cudaStreamBeginCapture(end.stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    end.launch(PortBody::kNothing, PortForm::kBlock, end.job(0, 0));
    ASSERT_EQ(cudaStreamEndCapture(end.stream, &graph), cudaSuccess);
    line.meet();
    isShort("cudaDeviceSynchronize", [] { return cudaDeviceSynchronize(); });
    isShort("cudaFree", [&] { return cudaFree(memory); });
    isShort("cudaMalloc", [&] { return cudaMalloc(&memory, 64 << 20); });
    isShort("cudaFree", [&] { return cudaFree(memory); });
    isShort("the first launch of a kernel", [&] {
      launchLate(end.stream);
      return cudaStreamSynchronize(end.stream);
    });
    isShort("cudaGraphInstantiate", [&] { return cudaGraphInstantiate(&executable, graph, 0); });
    isShort("cudaGraphLaunch", [&] {
      const cudaError_t launched = cudaGraphLaunch(executable, end.stream);
      return launched == cudaSuccess ? cudaStreamSynchronize(end.stream) : launched;
    });
    EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  }));
  unsetenv("CUDA_MODULE_LOADING");
  unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
}

// How long a process takes to end behind a ping-pong by `engine`, services and all still there.
Clock::duration exitTime(PortEngine engine) {
  int ends[2];
  if (pipe(ends) != 0) return Clock::duration::max();
  const pid_t child = fork();
  if (child == 0) {
    int sides[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sides) != 0) std::_Exit(5);
    const auto play = [&](int index) {
      const Line line(sides[index]);
      PortEndOptions options = withResidentPort(64 << 10);
      if (engine != PortEngine::kSm) options.service.residentBlocks = 0;
      [[maybe_unused]] static const PortEnd* volatile kept[2];  // and not destroyed
      const auto* const end = new PortEnd(index, line, options);
      kept[index] = end;
      end->run(PortBody::kPingPong, PortForm::kThread,
               end->job(4096, isSoftware() ? 6 : 200, engine));
    };
    std::thread other([&] { play(1); });
    play(0);
    other.join();
    const Clock::time_point now = Clock::now();
    if (write(ends[1], &now, sizeof(now)) != sizeof(now)) std::_Exit(6);
    std::exit(testing::Test::HasFailure() ? 1 : 0);
  }
  Clock::time_point begin{};
  close(ends[1]);
  EXPECT_EQ(read(ends[0], &begin, sizeof(begin)), static_cast<ssize_t>(sizeof(begin)));
  int state = 0;
  EXPECT_EQ(waitpid(child, &state, 0), child);
  const Clock::duration took = Clock::now() - begin;
  EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 0) << state;
  close(ends[0]);
  return took;
}

TEST(PortResidentExit, IsNotHeldUp) {
  PEERLANE_NEEDS(Sides::kOneProcess);
  for (const char* queues : {"32", "1"}) {
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", queues, 1);  // for the child
    // What the driver takes to let go of the GPU is not the resident port's; nor is what a busy
    // machine takes, so the best of a few counts.
    Clock::duration without = Clock::duration::max(), with = Clock::duration::max();
    const auto isBusy = [&] {
      return with >= without + milliseconds(100) || (isSoftware() && without >= kGoodbyePatience);
    };
    for (int i = 0; i < 5 && (i == 0 || isBusy()); ++i) {
      without = std::min(without, exitTime(PortEngine::kCe));
      with = std::min(with, exitTime(PortEngine::kSm));
    }
    // clock: a yardstick of the same run, the best of five
    EXPECT_LT(with, without + milliseconds(100));
    // Nor does a port that nobody has closed.
    if (isSoftware()) {
      EXPECT_LT(without, kGoodbyePatience);
    }
    std::printf("%s queues: exit takes %.1f ms with it, %.1f without\n", queues,
                std::chrono::duration<double, std::milli>(with).count(),
                std::chrono::duration<double, std::milli>(without).count());
  }
  unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
}

}  // namespace
}  // namespace peerlane::gputest
