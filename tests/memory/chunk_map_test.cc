// SPDX-License-Identifier: Apache-2.0
#include "peerlane/memory/chunk_map.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "peerlane/os/fd.h"
#include "tests/core/expect_ok.h"

namespace peerlane {
namespace {

constexpr uint64_t kMiB = 1 << 20;

ChunkRuns runsOf(std::initializer_list<std::pair<uint64_t, uint64_t>> sizesAndCounts) {
  ChunkRuns runs;
  for (const auto& [bytes, count] : sizesAndCounts)
    for (uint64_t i = 0; i < count; ++i) runs.add(bytes);
  return runs;
}

std::vector<std::byte> blobOf(std::initializer_list<uint64_t> words) {
  std::vector<std::byte> blob;
  for (const uint64_t word : words)
    for (int shift = 0; shift < 64; shift += 8)
      blob.push_back(static_cast<std::byte>(word >> shift));
  return blob;
}

TEST(ChunkRuns, PlacesOfChunks) {
  const ChunkRuns runs = runsOf({{2 * kMiB, 3}, {20 * kMiB, 2}, {2 * kMiB, 1}});
  EXPECT_EQ(runs.count(), 6u);
  EXPECT_EQ(runs.bytes(), 48 * kMiB);
  EXPECT_EQ(runs.text(), "6 chunks of 2 MiB to 20 MiB");
  EXPECT_EQ(runsOf({{2 * kMiB, 64}}).text(), "64 chunks of 2 MiB");
  uint64_t offset = 0;
  for (uint64_t i = 0; i < runs.count(); ++i) {
    const ChunkRuns::Place place = runs.at(i);
    EXPECT_EQ(place.offset, offset) << i;
    EXPECT_EQ(place.bytes, i == 3 || i == 4 ? 20 * kMiB : 2 * kMiB) << i;
    EXPECT_EQ(runs.indexOf(place.offset), i);
    EXPECT_EQ(runs.indexOf(place.offset + place.bytes - 1), i);
    offset += place.bytes;
  }
}

TEST(ChunkRuns, GoldenBytesAndBack) {
  const ChunkRuns runs = runsOf({{2 * kMiB, 3}, {20 * kMiB, 2}});
  EXPECT_EQ(runs.encode(), blobOf({0x200000, 3, 0x1400000, 2}));
  auto back = ChunkRuns::decode(runs.encode());
  ASSERT_TRUE(back.isOk()) << back.status().toString();
  EXPECT_EQ(back->encode(), runs.encode());
  EXPECT_EQ(back->count(), 5u);
  EXPECT_EQ(back->bytes(), 46 * kMiB);
  EXPECT_EQ(back->indexOf(6 * kMiB), 3u);
}

TEST(ChunkRuns, LimitsHold) {
  ChunkRuns changing;
  for (uint64_t i = 0; i < ChunkRuns::kMostRuns; ++i) changing.add((i % 2 + 1) * 2 * kMiB);
  EXPECT_TRUE(changing.fits());
  EXPECT_EQ(changing.encode().size(), 4096u);
  changing.add(2 * kMiB);
  EXPECT_FALSE(changing.fits());
}

TEST(ChunkRuns, ForeignBytesAreRefusedByName) {
  const std::pair<std::vector<std::byte>, const char*> cases[] = {
      {{}, "0 bytes"},
      {std::vector<std::byte>(15), "15 bytes"},
      {std::vector<std::byte>(4112), "4112 bytes"},
      {blobOf({0, 5}), "a run without chunks or bytes"},
      {blobOf({5, 0}), "a run without chunks or bytes"},
      {blobOf({4096, (1 << 20) + 1}), "more than 1048576 chunks"},
      {blobOf({4096, 1 << 20, 4096, 1}), "more than 1048576 chunks"},
      {blobOf({1ull << 60, 16}), "no 64-bit number"},
      {blobOf({1ull << 63, 1, 1ull << 63, 1}), "no 64-bit number"},
  };
  for (const auto& [blob, reason] : cases) {
    const Status refused = ChunkRuns::decode(blob).status();
    EXPECT_EQ(refused.code(), Code::kCorrupt);
    EXPECT_NE(refused.message().find(reason), std::string_view::npos) << refused.toString();
  }
}

struct Mapped {
  uint64_t offset;
  std::vector<uint64_t> sizes;
};

class FakeSpace final : public ChunkSpace {
 public:
  explicit FakeSpace(std::vector<Mapped>& log, bool& ended) : log_(log), ended_(ended) {}
  ~FakeSpace() override { ended_ = true; }
  std::byte* data() const override { return reinterpret_cast<std::byte*>(uintptr_t{0x1000'0000}); }
  Status map(uint64_t offset, std::span<const uint64_t> sizes,
             std::vector<VmmHandle> handles) override {
    EXPECT_EQ(sizes.size(), handles.size());
    for (const VmmHandle& handle : handles)
      if (!handle.fd && handle.fabric.empty()) return Status(Code::kCorrupt, "no handle");
    log_.push_back({offset, {sizes.begin(), sizes.end()}});
    return Status::ok();
  }

 private:
  std::vector<Mapped>& log_;
  bool& ended_;
};

struct ChunkMapTest : ::testing::Test {
  // 8 chunks of 2 MiB; the region begins 1 MiB behind the first one's begin and has 14.5 MiB.
  std::vector<Mapped> log;
  bool ended = false;
  std::unique_ptr<ChunkMap> chunks = std::make_unique<ChunkMap>(
      runsOf({{2 * kMiB, 8}}), kMiB, 29 * kMiB / 2, std::make_unique<FakeSpace>(log, ended));

  static std::vector<VmmHandle> handles(size_t count) {
    std::vector<VmmHandle> all;
    for (size_t i = 0; i < count; ++i) all.push_back({makeEventFd().value(), {}});
    return all;
  }
};

using Ranges = std::vector<ChunkMap::Range>;

TEST_F(ChunkMapTest, EachChunkIsAskedForOnce) {
  EXPECT_EQ(chunks->data(), reinterpret_cast<std::byte*>(uintptr_t{0x1000'0000} + kMiB));
  EXPECT_EQ(chunks->ask(0, 1), (Ranges{{0, 1}}));
  EXPECT_EQ(chunks->ask(0, kMiB), Ranges());              // the same chunk
  EXPECT_EQ(chunks->ask(kMiB - 1, 2), (Ranges{{1, 1}}));  // across a border
  EXPECT_EQ(chunks->ask(5 * kMiB, 1), (Ranges{{3, 1}}));
  EXPECT_EQ(chunks->ask(0, 29 * kMiB / 2), (Ranges{{2, 1}, {4, 4}}));
}

TEST_F(ChunkMapTest, CoversWhatIsMapped) {
  EXPECT_FALSE(chunks->covers(0, 1));
  (void)chunks->ask(0, 4 * kMiB);
  EXPECT_FALSE(chunks->covers(0, 1));
  EXPECT_OK(chunks->map(1, handles(2)));
  ASSERT_EQ(log.size(), 1u);
  EXPECT_EQ(log[0].offset, 2 * kMiB);
  EXPECT_EQ(log[0].sizes, (std::vector<uint64_t>{2 * kMiB, 2 * kMiB}));
  EXPECT_FALSE(chunks->covers(0, kMiB));
  EXPECT_TRUE(chunks->covers(kMiB, 4 * kMiB));
  EXPECT_FALSE(chunks->covers(kMiB, 4 * kMiB + 1));
  EXPECT_EQ(chunks->mapped(), 2u);
  EXPECT_FALSE(chunks->complete());
  EXPECT_OK(chunks->map(0, handles(1)));
  EXPECT_OK(chunks->map(3, handles(5)));
  EXPECT_TRUE(chunks->complete());
  EXPECT_TRUE(chunks->covers(0, 29 * kMiB / 2));
  EXPECT_FALSE(ended);
  chunks.reset();
  EXPECT_TRUE(ended);
}

TEST_F(ChunkMapTest, WhatWillNotComeIsToldToThoseWhoNeedIt) {
  (void)chunks->ask(0, 29 * kMiB / 2);
  chunks->fail({3, 2}, Status(Code::kClosed, "freed"));
  EXPECT_TRUE(chunks->failed());
  EXPECT_OK(chunks->failure(0, 5 * kMiB));
  EXPECT_EQ(chunks->failure(0, 5 * kMiB + 1).code(), Code::kClosed);
  EXPECT_EQ(chunks->failure(8 * kMiB, kMiB).code(), Code::kClosed);
  EXPECT_OK(chunks->failure(9 * kMiB, kMiB));
  EXPECT_EQ(chunks->ask(5 * kMiB, 4 * kMiB), Ranges());  // not again
  // A handle that cannot be mapped takes its message with it.
  std::vector<VmmHandle> bad = handles(1);
  bad.emplace_back();
  EXPECT_EQ(chunks->map(6, std::move(bad)).code(), Code::kCorrupt);
  EXPECT_FALSE(chunks->covers(11 * kMiB, 1));
  EXPECT_FALSE(chunks->failure(11 * kMiB, 1).isOk());
  EXPECT_EQ(chunks->mapped(), 0u);
}

// Posters look and ask while the progress thread maps.
TEST_F(ChunkMapTest, ManyThreads) {
  std::atomic<uint64_t> asked{0};
  std::vector<std::thread> posters;
  for (int i = 0; i < 4; ++i)
    posters.emplace_back([&] {
      for (const auto& range : chunks->ask(0, 29 * kMiB / 2)) asked += range.count;
      while (!chunks->covers(0, 29 * kMiB / 2)) std::this_thread::yield();
    });
  for (uint64_t i = 0; i < 8; ++i) EXPECT_OK(chunks->map(i, handles(1)));
  for (std::thread& poster : posters) poster.join();
  EXPECT_LE(asked, 8u);
}

}  // namespace
}  // namespace peerlane
