// SPDX-License-Identifier: Apache-2.0
//
// The resident port: kernels that copy for other kernels, and never stand in anybody's way.
#include <chrono>
#include <thread>

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

INSTANTIATE_TEST_SUITE_P(Sides, PortResident,
                         testing::Values(Sides::kOneProcess, Sides::kTwoProcesses),
                         [](const auto& each) {
                           return each.param == Sides::kOneProcess ? "OneProcess" : "TwoProcesses";
                         });

// Whoever waits for the whole GPU while it is resident waits shortly.
TEST(PortResidentCalls, ThatWaitForTheGpuReturn) {
  EXPECT_TRUE(runSides(Sides::kOneProcess, [](int index, const Line& line) {
    const PortEnd end(index, line, withResidentPort(64 << 10));
    const auto isShort = [&](const char* what, const auto& call) {
      end.run(PortBody::kPingPong, PortForm::kThread,
              end.job(4096, isSoftware() ? 6 : 200, PortEngine::kSm));
      const auto begin = Clock::now();
      EXPECT_EQ(call(), cudaSuccess) << what;
      const auto took = std::chrono::duration_cast<milliseconds>(Clock::now() - begin);
      EXPECT_LT(took.count(), 100) << what;
      line.meet();
    };
    void* memory = nullptr;
    ASSERT_EQ(cudaMalloc(&memory, 1 << 20), cudaSuccess);
    line.meet();
    isShort("cudaDeviceSynchronize", [] { return cudaDeviceSynchronize(); });
    isShort("cudaFree", [&] { return cudaFree(memory); });
    isShort("cudaMalloc", [&] { return cudaMalloc(&memory, 64 << 20); });
    isShort("cudaFree", [&] { return cudaFree(memory); });
  }));
}

}  // namespace
}  // namespace peerlane::gputest
