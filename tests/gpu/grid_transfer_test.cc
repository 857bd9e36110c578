// SPDX-License-Identifier: Apache-2.0
//
// Long lists of equal blocks between GPUs, which travel as block numbers: put and get in one call.
#include <cuda_runtime_api.h>

#include <map>
#include <numeric>
#include <random>

#include "tests/gpu/two_processes.h"

namespace peerlane::gputest {
namespace {

constexpr size_t kBytes = size_t{24} << 20;
constexpr size_t kCount = 1500;

struct Grid {
  size_t block;
  size_t hereStride;
  size_t thereStride;
  size_t off = 0;  // blocks lie up to 16 times so much behind their places

  size_t here(size_t place) const { return place * hereStride + place * 7 % 17 * off; }
  size_t there(size_t place) const { return place * thereStride + place * 5 % 17 * off; }
};
constexpr Grid kGrids[] = {{4096, 4096, 4096},    {4096, 4096, 12288},    {132, 576, 132},
                           {7, 9, 7000},          {4096, 4352, 4352, 16}, {560, 4096, 832, 16},
                           {4099, 4400, 12288, 3}};

// Block i lies at place i here and at place placesOf()[i] there.
std::vector<size_t> placesOf(const Grid& grid) {
  std::vector<size_t> places(kCount);
  std::iota(places.begin(), places.end(), size_t{0});
  std::mt19937 random(static_cast<uint32_t>(grid.block));
  std::shuffle(places.begin(), places.end(), random);
  return places;
}

std::vector<Block> blocksOf(const Side& side, const Grid& grid) {
  const auto places = placesOf(grid);
  std::vector<Block> blocks;
  for (size_t i = 0; i < kCount; ++i)
    blocks.push_back({&side.region, grid.here(i), &side.remote, grid.there(places[i]), grid.block});
  return blocks;
}

std::vector<unsigned char> bytesOf(const Region& region) {
  std::vector<unsigned char> bytes(kBytes);
  mustCuda(cudaMemcpy(bytes.data(), region.data(), kBytes, cudaMemcpyDefault), "copy");
  return bytes;
}

// Made once: it takes a sanitizer longer than the transfers.
const std::vector<unsigned char>& filled(uint32_t seed) {
  static std::map<uint32_t, std::vector<unsigned char>> made;
  std::vector<unsigned char>& bytes = made[seed];
  if (bytes.empty()) {
    bytes.resize(kBytes);
    fill(bytes.data(), kBytes, seed);
  }
  return bytes;
}

void fillAnew(const Region& region, uint32_t seed) {
  mustCuda(cudaMemcpy(region.data(), filled(seed).data(), kBytes, cudaMemcpyDefault), "copy");
  mustCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

// `at` after the blocks of `from` have come: nothing beside them has changed.
std::vector<unsigned char> scattered(std::vector<unsigned char> at,
                                     const std::vector<unsigned char>& from, const Grid& grid,
                                     bool isPut) {
  const auto places = placesOf(grid);
  for (size_t i = 0; i < kCount; ++i) {
    const size_t here = grid.here(i);
    const size_t there = grid.there(places[i]);
    std::copy_n(from.begin() + static_cast<ptrdiff_t>(isPut ? here : there), grid.block,
                at.begin() + static_cast<ptrdiff_t>(isPut ? there : here));
  }
  return at;
}

class Grids : public ::testing::TestWithParam<bool> {};

// With the engine that suits and the other one; on a stream of the caller's and on the library's.
TEST_P(Grids, Arrive) {
  PEERLANE_NEEDS_GPUS(1);
  const bool isPut = GetParam();
  const auto active = [&](const Line& line) {
    const Side side(0, line, kBytes);
    for (const Grid& grid : kGrids)
      for (const Engine engine : {Engine::kAuto, Engine::kCe})
        for (const bool onStream : {false, true}) {
          fillAnew(side.region, 5);
          line.meet();
          const auto blocks = blocksOf(side, grid);
          PostOptions options{.engine = engine};
          if (onStream) options.deviceStream = side.deviceStream();
          if (isPut) options.notify.signal = 3;
          auto posted = isPut ? put(side.peer, blocks, options) : get(side.peer, blocks, options);
          must(must(std::move(posted), "post").wait(kPatience), "wait");
          if (!isPut) {
            EXPECT_TRUE(bytesOf(side.region) == scattered(filled(5), filled(6), grid, isPut))
                << grid.block << " " << engineName(engine) << " " << onStream;
          }
          line.meet();
          if (isPut) {
            EXPECT_EQ(line.receive(), "good") << grid.block << " " << engineName(engine);
          }
        }
  };
  const auto passive = [&](const Line& line) {
    const Side side(1, line, kBytes);
    const Signal signal = must(Signal::create(side.peer, 3), "signal");
    uint64_t puts = 0;
    for (const Grid& grid : kGrids)
      for (int round = 0; round < 4; ++round) {
        fillAnew(side.region, 6);
        line.meet();
        if (isPut) must(signal.wait(++puts, kPatience), "signal");
        line.meet();
        if (!isPut) continue;
        const bool good = bytesOf(side.region) == scattered(filled(6), filled(5), grid, isPut);
        line.send(good ? "good" : "wrong");
      }
  };
  EXPECT_TRUE(runTwo(active, passive));
}

INSTANTIATE_TEST_SUITE_P(GridTransfer, Grids, ::testing::Bool(),
                         [](const auto& tested) { return tested.param ? "Put" : "Get"; });

// The stream waits for the import, and its numbers are read after that.
TEST(GridTransfer, OfARegionThatIsNotImportedYet) {
  PEERLANE_NEEDS_GPUS(1);
  const auto active = [&](const Line& line) {
    const Side side(0, line, kBytes, Memory::kMalloc);
    fill(side.region.data(), kBytes, 5);
    line.meet();
    {
      const auto blocks = blocksOf(side, kGrids[0]);
      auto posted = must(
          put(side.peer, blocks, {.notify = {.signal = 3}, .deviceStream = side.deviceStream()}),
          "put");
      must(posted.wait(kPatience), "wait");
    }
    EXPECT_EQ(line.receive(), "good");
  };
  const auto passive = [&](const Line& line) {
    const Side side(1, line, kBytes, Memory::kMalloc);
    const Signal signal = must(Signal::create(side.peer, 3), "signal");
    fill(side.region.data(), kBytes, 6);
    line.meet();
    must(signal.wait(1, kPatience), "signal");
    const bool good = bytesOf(side.region) == scattered(filled(6), filled(5), kGrids[0], true);
    line.send(good ? "good" : "wrong");
  };
  EXPECT_TRUE(runTwo(active, passive));
}

// What is wrong with a list that looks like a grid is said as of any other.
TEST(GridTransfer, FaultsAreNamed) {
  PEERLANE_NEEDS_GPUS(1);
  const auto active = [&](const Line& line) {
    const Side side(0, line, kBytes);
    const auto refused = [&](std::vector<Block> blocks, const char* said) {
      const Status status = put(side.peer, blocks).status();
      EXPECT_EQ(status.code(), Code::kInvalidArgument);
      EXPECT_NE(status.message().find(said), std::string_view::npos) << status.toString();
    };
    auto blocks = blocksOf(side, kGrids[0]);
    blocks[1400].remoteOffset = blocks[20].remoteOffset;
    refused(blocks, "blocks 20 and 1400 of the list (from 0) overlap at their destination");
    blocks = blocksOf(side, kGrids[0]);
    blocks[1499].localOffset = kBytes;
    refused(blocks, "block 1499: local range");
    blocks = blocksOf(side, kGrids[0]);
    blocks[7].bytes = 0;
    refused(blocks, "block 7 has 0 bytes");
    line.meet();
  };
  const auto passive = [&](const Line& line) {
    const Side side(1, line, kBytes);
    line.meet();
  };
  EXPECT_TRUE(runTwo(active, passive));
}

}  // namespace
}  // namespace peerlane::gputest
