// SPDX-License-Identifier: Apache-2.0
//
// What `peerlane demo` shows of messages: send and receive between memory of two GPUs, or of one.
#include "tests/core/expect_ok.h"
#include "tests/gpu/two_processes.h"
#include "tools/trial/trial.h"

namespace peerlane::gputest {
namespace {

void expectMessages(const Device& here, const Device& there) {
  const auto trial =
      MUST(Trial::create({.oneProcess = true, .device = here, .secondDevice = there}));
  for (const uint64_t bytes : {uint64_t{8}, uint64_t{5} << 20}) {
    const TrialShape shape{
        .local = TrialMemory::kGpuShared, .remote = TrialMemory::kGpuShared, .blockBytes = bytes};
    const TrialOutcome outcome = MUST(trial->message(shape, 3));
    EXPECT_EQ(outcome.transfers, 3u);
    EXPECT_EQ(outcome.bytes, bytes);
    EXPECT_EQ(outcome.wrong, 0u);
    EXPECT_GT(outcome.p50.count(), 0);
  }
  EXPECT_OK(trial->end());
}

TEST(TrialMessages, GoBetweenTheMemoriesOfTwoGpus) {
  PEERLANE_NEEDS_GPUS(2);
  expectMessages({DeviceKind::kCuda, 0}, {DeviceKind::kCuda, 1});
}

TEST(TrialMessages, GoWithinOneGpu) {
  PEERLANE_NEEDS_GPUS(1);
  expectMessages({DeviceKind::kCuda, 0}, {DeviceKind::kCuda, 0});
}

}  // namespace
}  // namespace peerlane::gputest
