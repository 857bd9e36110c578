// SPDX-License-Identifier: Apache-2.0
//
// Long lists of blocks of many sizes at odd offsets, posted again and again: what a post allocates,
// and that overlaps are refused in each.
#include <algorithm>
#include <random>
#include <vector>

#include "tests/gpu/counted_new.h"
#include "tests/gpu/two_processes.h"

namespace peerlane::gputest {
namespace {

constexpr size_t kBytes = size_t{4} << 20;
constexpr size_t kCount = 4000;

// They touch, or are some bytes apart, and come in no order.
std::vector<Block> blocksOf(const Side& side, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<Block> blocks;
  uint64_t here = 0, there = 0;
  for (size_t i = 0; i < kCount; ++i) {
    const uint64_t bytes = 1 + random() % 900;
    blocks.push_back({&side.region, here, &side.remote, there, bytes});
    here += bytes + random() % 3;
    there += bytes + random() % 2 * (random() % 40);
  }
  std::shuffle(blocks.begin(), blocks.end(), random);
  return blocks;
}

// An allocation as long as a list is a mapping of its own for malloc(), made and unmade by each
// post, and each of its pages costs a fault.
TEST(ListPosts, AllocateNothingAsLongAsTheList) {
  PEERLANE_NEEDS_GPUS(1);
  ASSERT_TRUE(CountedNew::counts());
  const auto active = [](const Line& line) {
    const Side side(0, line, kBytes);
    constexpr int kWarm = 3, kCounted = 5;
    for (int i = 0; i < kWarm + kCounted; ++i) {
      std::vector<Block> blocks = blocksOf(side, static_cast<uint32_t>(i));
      PostOptions options;
      options.deviceStream = side.deviceStream();
      options.notify.signal = 3;
      CountedNew::begin();
      auto posted = put(side.peer, blocks, options);
      const CountedNew::Seen seen = CountedNew::end();
      if (i >= kWarm) {
        EXPECT_LT(seen.largest, kCount) << "bytes at once";
      }
      must(must(std::move(posted), "post").wait(kPatience), "wait");
      // The next post follows one that was accepted, or one that was refused.
      if (i % 2 != 0) continue;
      blocks[7].remoteOffset = blocks[3500].remoteOffset + blocks[3500].bytes - 1;
      EXPECT_EQ(put(side.peer, blocks, options).status().code(), Code::kInvalidArgument);
    }
    line.meet();
  };
  const auto passive = [](const Line& line) {
    const Side side(1, line, kBytes);
    line.meet();
  };
  EXPECT_TRUE(runTwo(active, passive, 60));
}

}  // namespace
}  // namespace peerlane::gputest
