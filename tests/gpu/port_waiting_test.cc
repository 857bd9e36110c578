// SPDX-License-Identifier: Apache-2.0
//
// Kernels that wait for a peer, with other work behind them in the queues of their GPU: what serves
// them does not stand behind that.
#include "tests/gpu/port_bodies.h"
#include "tests/gpu/port_end.h"

namespace peerlane::gputest {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::seconds kAnswer{20};

// The side on the host: it answers each round when it has seen the bytes.
void answerOnHost(const Line& line, uint64_t bytes, uint64_t rounds) {
  const auto context = must(Context::create(), "Context::create");
  const Peer peer = meetPeer(*context, line, true);
  const Region out = must(context->allocate(bytes), "allocate");
  const Region in = must(context->allocate(bytes), "allocate");
  const RemoteRegion theirOut = exchange(peer, out, line), theirIn = exchange(peer, in, line);
  const auto service = must(ProxyService::create(*context), "ProxyService::create");
  const PortConnection connection = must(service->connect(peer), "connect");
  std::vector<PortSemaphore> semaphores;
  for (uint32_t number = 0; number < PortEndOptions().semaphores; ++number)
    semaphores.push_back(must(service->addSemaphore(connection, number), "addSemaphore"));
  must(service->start(), "start");
  line.meet();
  const auto* const words = reinterpret_cast<const uint32_t*>(in.data());
  uint64_t wrong = 0;
  for (uint64_t round = 1; round <= rounds; ++round) {
    must(semaphores[0].wait(1, kAnswer), "wait");
    for (uint64_t i = 0; i < bytes / 4; ++i) wrong += words[i] != portWord(i, round, 0) ? 1 : 0;
    must(semaphores[0].signal(), "signal");
  }
  EXPECT_EQ(wrong, 0u);
  line.meet();
}

void setQueues(const char* count) {
  setenv("CUDA_MODULE_LOADING", "LAZY", 1);  // for the sides; this process does not touch CUDA
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", count, 1);
  setenv("SOFTWARE_GPU_PRIORITIES", "apart", 1);
}
void unsetQueues() {
  for (const char* name :
       {"SOFTWARE_GPU_PRIORITIES", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_MODULE_LOADING"})
    unsetenv(name);
}

// Kernels behind the one that waits, in its stream and in another one.
void launchOthers(const PortEnd& end, cudaStream_t other) {
  const PortJob nothing = end.job(0, 0, PortEngine::kCe, 1);
  for (int i = 0; i < 20; ++i) {
    end.launch(PortBody::kNothing, PortForm::kBlock, nothing);
    end.launch(PortBody::kNothing, PortForm::kWarp, nothing, 1, other);
  }
}

void expectEnds(const PortEnd& end, cudaStream_t other) {
  if (!end.joinWithin(kAnswer))
    die("a kernel that waits", Status(Code::kTimeout, end.service->dump()));
  EXPECT_TRUE(end.joinWithin(10s, other));
  end.expectGood();
}

// D8: with one hardware queue, and at the end a kernel that has to be loaded first, for which the
// driver stops whatever else is asked of the GPU until the waiting one has ended. So nothing may be
// needed but the threads of the waiting ones.
class PortWaiting : public testing::TestWithParam<Sides> {};
INSTANTIATE_TEST_SUITE_P(Sides, PortWaiting,
                         testing::Values(Sides::kOneProcess, Sides::kTwoProcesses),
                         [](const auto& tested) { return nameOf(tested.param); });

TEST_P(PortWaiting, InTheOnlyQueueBeforeAKernelThatIsLoadedThen) {
  PEERLANE_NEEDS(GetParam());
  setQueues("1");
  EXPECT_TRUE(runSides(GetParam(), [](int index, const Line& line) {
    const uint64_t bytes = inSoftware() ? 32 << 10 : 1 << 20;  // the copy engine's, else
    const PortEnd end(index, line, {.bytes = bytes});
    const cudaStream_t other = makeStream();
    EXPECT_NE(end.put().explain().find("CUDA_DEVICE_MAX_CONNECTIONS=1"), std::string::npos);
    line.meet();
    end.launch(PortBody::kExchange, PortForm::kWarp, end.job(bytes, inSoftware() ? 5 : 500));
    // On one GPU the other side's kernel must not stand behind what this one has behind its own.
    line.meet();
    launchOthers(end, other);
    if (index == 0) launchLate(other);
    expectEnds(end, other);
  }));
  unsetQueues();
}

// Both sides need both proxies in every round, where each stream has a queue.
TEST_P(PortWaiting, ByTheCopyEngine) {
  PEERLANE_NEEDS(GetParam());
  setQueues("32");
  EXPECT_TRUE(runSides(GetParam(), [](int index, const Line& line) {
    const PortEnd end(index, line);
    const cudaStream_t other = makeStream();
    line.meet();
    end.launch(PortBody::kExchange, PortForm::kThread,
               end.job(64 << 10, inSoftware() ? 10 : 2000, PortEngine::kCe));
    launchOthers(end, other);
    expectEnds(end, other);
  }));
  unsetQueues();
}

// The same for a peer on the host, in more rounds than the copy engine's queue holds requests.
TEST(PortWaitingForHost, ByTheCopyEngine) {
  PEERLANE_NEEDS(Sides::kOneProcess);
  constexpr uint64_t kBytes = 16 << 10;
  const uint64_t rounds = inSoftware() ? 10 : 2000;
  setQueues("32");
  EXPECT_TRUE(runTwo(
      [&](const Line& line) {
        const PortEnd end(0, line, {.bytes = kBytes});
        const cudaStream_t other = makeStream();
        end.launch(PortBody::kPutAndFlush, PortForm::kThread,
                   end.job(kBytes, rounds, PortEngine::kCe));
        launchOthers(end, other);
        expectEnds(end, other);
      },
      [&](const Line& line) { answerOnHost(line, kBytes, rounds); }));
  unsetQueues();
}

}  // namespace
}  // namespace peerlane::gputest
