// SPDX-License-Identifier: Apache-2.0
//
// Random programs of words and copies, on two streams of a GPU that wait for each other's words:
// afterwards memory is what the CPU executor makes of it.
#include <dlfcn.h>

#include <algorithm>

#include "peerlane/program/stream/ordered/ordered_program.h"
#include "tests/gpu/ordered_fixture.h"
#include "tests/gpu/random_programs.h"

namespace peerlane::gputest {
namespace {

// On a real GPU, copies by the copy engine that two streams enqueue can stand in one queue: one
// that should let the other stream go on, behind the very wait.
bool isInSoftware() {
  return dlsym(RTLD_DEFAULT, "software_gpu_flushes") != nullptr;
}

class OrderedRandom : public OrderedFixture {
 protected:
  void runOnGpu(const RandomPair& pair, Engine engine, RandomMemory& memory) const {
    std::memcpy(pinned(), memory.pinned.data(), memory.pinned.size());
    ASSERT_EQ(cudaSuccess,
              cudaMemcpy(device(), memory.device.data(), memory.device.size(), cudaMemcpyDefault));
    // Of pageable memory it has only begun.
    ASSERT_EQ(cudaSuccess, cudaDeviceSynchronize());
    std::unique_ptr<DeviceProgram> programs[2];
    for (size_t side = 0; side < 2; ++side)
      programs[side] =
          MUST(executor_->prepare(pair.sides[side].program,
                                  RandomPair::bind(side, pinned(), device()), {.engine = engine}));
    DevicePost posts[2];
    for (size_t side = 0; side < 2; ++side)
      posts[side] = post(*programs[side], pair.sides[side].cursors, side);
    for (size_t side = 0; side < 2; ++side) {
      ASSERT_EQ(cudaSuccess, cudaStreamSynchronize(streams_[side]));
      ASSERT_TRUE(posts[side].ended());
      const auto& program = static_cast<const stream::LoweredProgram&>(*programs[side]);
      if (program.isOrdered() && static_cast<const stream::OrderedProgram&>(program).waits())
        executor_->waitEnded();
    }
    std::memcpy(memory.pinned.data(), pinned(), memory.pinned.size());
    ASSERT_EQ(cudaSuccess,
              cudaMemcpy(memory.device.data(), device(), memory.device.size(), cudaMemcpyDefault));
  }

  void compare(uint64_t seed, const RandomWishes& wishes, Engine engine) const {
    const RandomPair pair(seed, wishes);
    RandomMemory expected = pair.before, found = pair.before;
    ASSERT_TRUE(runOnCpu(pair, expected)) << "seed " << seed << "\n" << pair.toString();
    ASSERT_NO_FATAL_FAILURE(runOnGpu(pair, engine, found)) << "seed " << seed;
    ASSERT_TRUE(expected == found) << "seed " << seed << ", engine " << engineName(engine) << "\n"
                                   << pair.toString();
  }

  RandomWishes wishes() const {
    return {.addsToPinned = abilities_.addsToHost,
            .flushesOwn = abilities_.hasFlush || abilities_.ordersNicWrites};
  }
  static constexpr Engine kEngines[] = {Engine::kAuto, Engine::kCe, Engine::kSm, Engine::kInline};
  static constexpr uint64_t kPairs = 2500;  // two programs each
};

TEST_F(OrderedRandom, OneBesideTheOther) {
  RandomWishes alone = wishes();
  alone.crosses = false;
  for (uint64_t seed = 0; seed < kPairs; ++seed)
    ASSERT_NO_FATAL_FAILURE(compare(seed, alone, kEngines[seed % std::size(kEngines)]));
}

TEST_F(OrderedRandom, OneWaitsForTheOther) {
  RandomWishes crossing = wishes();
  crossing.hasSlotCopies = isInSoftware();
  for (uint64_t seed = kPairs; seed < 2 * kPairs; ++seed)
    ASSERT_NO_FATAL_FAILURE(
        compare(seed, crossing,
                isInSoftware() ? kEngines[seed % std::size(kEngines)] : kEngines[2 + seed % 2]));
}

}  // namespace
}  // namespace peerlane::gputest
