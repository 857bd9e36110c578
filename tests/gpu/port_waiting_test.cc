// SPDX-License-Identifier: Apache-2.0
//
// A kernel that waits for a peer on the host, with other work behind it in the only hardware queue
// of its GPU: its proxy serves it all the same. What two GPUs do to each other:
// tests/gpu/port_device_test.cc.
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

// D8. More rounds than a queue of the copy engine holds requests. `late`: also a kernel that has to
// be loaded while the other one waits.
TEST(PortWaiting, BeforeOtherWorkInOneQueue) {
  PEERLANE_NEEDS(Sides::kOneProcess);
  constexpr uint64_t kBytes = 16 << 10;
  const uint64_t rounds = inSoftware() ? 10 : 2000;
  setenv("CUDA_MODULE_LOADING", "LAZY", 1);  // for the sides; this process does not touch CUDA
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
  setenv("SOFTWARE_GPU_PRIORITIES", "apart", 1);
  for (const bool late : {false, true})
    EXPECT_TRUE(runTwo(
        [&](const Line& line) {
          const PortEnd end(0, line, {.bytes = kBytes});
          const cudaStream_t other = makeStream();
          end.launch(PortBody::kPutAndFlush, PortForm::kThread,
                     end.job(kBytes, rounds, PortEngine::kCe));
          const PortJob nothing = end.job(0, 0, PortEngine::kCe, 1);
          for (int i = 0; i < 20; ++i) {
            end.launch(PortBody::kNothing, PortForm::kBlock, nothing);
            end.launch(PortBody::kNothing, PortForm::kWarp, nothing, 1, other);
          }
          if (late) launchLate(other);
          if (!end.joinWithin(kAnswer))
            die("a kernel that waits", Status(Code::kTimeout, end.service->dump()));
          EXPECT_TRUE(end.joinWithin(10s, other));
          end.expectGood();
        },
        [&](const Line& line) { answerOnHost(line, kBytes, rounds); }));
  for (const char* name :
       {"SOFTWARE_GPU_PRIORITIES", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_MODULE_LOADING"})
    unsetenv(name);
}

}  // namespace
}  // namespace peerlane::gputest
