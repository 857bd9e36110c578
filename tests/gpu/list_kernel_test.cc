// SPDX-License-Identifier: Apache-2.0
//
// The list kernels by themselves: words that go to a ring, pieces that go where a ring says, what
// is checked of it, what releases; the far side on the same GPU and on another.
#include "peerlane/program/kernel/message/list_kernel.h"

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "peerlane/program/model/op.h"
#include "tests/core/expect_ok.h"
#include "tests/gpu/kernel_fixture.h"

namespace peerlane::kernel {
namespace {

constexpr uint32_t kSlots = 4, kWordStride = 64, kListStride = PieceNames::kMostBytes;
constexpr size_t kShapeAt = 8, kRegionsAt = 16;
constexpr size_t kMemoryBytes = size_t{8} << 20, kPinnedBytes = size_t{1} << 20;
// Bytes in either memory: words, the ring of lists, and then anything.
constexpr size_t kToldAt = 4096, kListAt = 8192, kFreeAt = 256 << 10;
// Bytes in pinned memory.
constexpr size_t kAbortAt = 0, kCompletionAt = 64, kFaultAt = 128, kTableAt = 4096, kHostAt = 65536;
constexpr uint32_t kTableSlots = 300;
constexpr uint64_t kShape = 0x1234567890;

class ListKernel : public KernelFixture {
 protected:
  ListKernel() : KernelFixture(kMemoryBytes, kPinnedBytes) {}
  Status load() override { return loadListKernels(); }

  std::byte* pinned(size_t at) const { return static_cast<std::byte*>(pinned_) + at; }
  uint64_t* pinnedWord(size_t at) const { return reinterpret_cast<uint64_t*>(pinned(at)); }
  uint64_t* word(size_t at) const {
    return reinterpret_cast<uint64_t*>(static_cast<std::byte*>(words_) + at);
  }
  void set(size_t at, uint64_t value) const {
    std::atomic_ref<uint64_t>(*pinnedWord(at)).store(value, std::memory_order_release);
  }
  uint64_t get(size_t at) const {
    return std::atomic_ref<uint64_t>(*pinnedWord(at)).load(std::memory_order_acquire);
  }
  bool ends() const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (cudaStreamQuery(stream_) == cudaErrorNotReady) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::yield();
    }
    return cudaStreamSynchronize(stream_) == cudaSuccess;
  }
  bool endsOrIsEnded() const {
    if (ends()) return true;
    set(kAbortAt, 1);
    (void)ends();
    return false;
  }
  void waits() const { EXPECT_EQ(cudaErrorNotReady, cudaStreamQuery(stream_)); }

  template <class Job>
  void describe(Job& job, uint64_t cursor) const {
    job.cursor = cursor;
    job.abort = pinnedWord(kAbortAt);
    job.fault = pinnedWord(kFaultAt);
    job.faultValue = 99;
    job.ended = word(kEndedAt);
    job.completion = pinnedWord(kCompletionAt);
    job.completionValue = cursor + 1;
    job.wait = {near(), kWordStride, 1};
    job.tell = {far(kToldAt), kWordStride, 1};
    job.slots = kSlots;
  }

  // --- Heads ---
  ListHeadLaunch headOf(uint64_t cursor, uint32_t words) const {
    ListHeadLaunch launch;
    ListHeadJob& job = launch.job;
    describe(job, cursor);
    job.words = pinnedWord(kHostAt);
    job.wordCount = words;
    job.list = {far(kListAt), kListStride, 0};
    job.values[0] = kShape;
    job.values[1] = 7;
    job.valuesAt[0] = kShapeAt;
    job.valuesAt[1] = kRegionsAt;
    launch.stream = stream_;
    return launch;
  }

  // --- Puts ---
  struct Place {
    uint64_t region, offset, bytes;
  };
  void name(uint64_t allocation, std::byte* base, uint64_t bytes) const {
    auto* const table = reinterpret_cast<NamedRegion*>(pinned(kTableAt));
    uint32_t slot = namedRegionSlot(allocation, kTableSlots);
    while (table[slot].base != nullptr && table[slot].allocation != allocation)
      slot = (slot + 1) % kTableSlots;

    table[slot].allocation = allocation;
    table[slot].generation = 3;
    table[slot].bytes = bytes;
    std::atomic_ref(table[slot].base).store(base, std::memory_order_release);
  }
  // Pieces of the source, which lie there with gaps.
  ListPutLaunch putOf(uint64_t cursor, const std::vector<Place>& places, bool isFar = false) const {
    ListPutLaunch launch;
    ListPutJob& job = launch.job;
    describe(job, cursor);
    auto* const pieces = reinterpret_cast<LocalPiece*>(pinned(kHostAt));
    size_t from = kSourceAt;
    for (size_t i = 0; i < places.size(); ++i) {
      job.tiles += copyTiles(places[i].bytes);
      pieces[i] = {near(from), places[i].bytes, job.tiles};
      from += places[i].bytes + 3;
    }
    job.pieces = pieces;
    job.count = static_cast<uint32_t>(places.size());
    std::byte* const room = isFar ? pinned(kHostAt + (512 << 10)) : near(kRoomAt);
    job.room = {reinterpret_cast<CopyPiece*>(room),
                reinterpret_cast<uint64_t*>(room + places.size() * sizeof(CopyPiece)), isFar};
    job.list = {near(kListAt), kListStride, 0};
    job.expected = kShape;
    job.value = kShape;
    job.checkAt = kShapeAt;
    job.regionsAt = kRegionsAt;
    job.valueAt = kShapeAt;
    job.table = {.entries = reinterpret_cast<NamedRegion*>(pinned(kTableAt)),
                 .slots = kTableSlots,
                 .mirror = reinterpret_cast<MirroredRegion*>(near(kMirrorAt)),
                 .version = 1};
    job.place = reinterpret_cast<PutPlace*>(word(kPlaceAt));
    job.arrivals = reinterpret_cast<uint32_t*>(word(kArrivalsAt));
    launch.stream = stream_;
    return launch;
  }
  // As a receiver's head.
  void post(uint64_t cursor, const std::vector<Place>& places, uint64_t regions,
            uint64_t shape = kShape) const {
    std::vector<uint64_t> words;
    for (uint64_t i = 0; i < std::min<uint64_t>(regions, PieceNames::kMostRegions); ++i)
      words.insert(words.end(), {100 + i, 3});
    for (const Place& place : places)
      words.push_back(PieceNames::place(place.region, place.offset));
    const size_t slot = cursor % kSlots;
    write(near(kListAt + slot * kListStride), words.data(), words.size() * 8);
    const uint64_t told[] = {cursor + 1, shape, regions};
    write(near(slot * kWordStride), told, sizeof told);
  }
  std::vector<uint8_t> fillSource(size_t bytes, uint32_t seed) const {
    std::vector<uint8_t> data(bytes);
    std::minstd_rand random(seed);
    for (uint8_t& byte : data) byte = static_cast<uint8_t>(random() >> 8);
    write(near(kSourceAt), data.data(), bytes);
    return data;
  }

  static constexpr size_t kPlaceAt = 0, kArrivalsAt = 64, kEndedAt = 128;  // in the words
  static constexpr size_t kMirrorAt = kFreeAt, kRoomAt = kFreeAt + (64 << 10),
                          kSourceAt = size_t{1} << 20;
};

TEST_P(ListKernel, HeadsWriteTheirWordsAndTell) {
  constexpr uint32_t kMost = PieceNames::kMostBytes / 8;
  for (uint32_t i = 0; i < kMost; ++i) *pinnedWord(kHostAt + 8 * i) = 1000 + i;
  uint64_t cursor = 5;
  for (const uint32_t words : {1u, 31u, 33u, 130u, 512u, 2048u, 2049u, kMost}) {
    const size_t slot = cursor % kSlots;
    CUDA_OK(cudaMemset(far(kListAt), 0, kSlots * kListStride));
    CUDA_OK(cudaDeviceSynchronize());
    ASSERT_OK(launchListHead(headOf(cursor, words)));
    waits();
    EXPECT_NE(cursor + 1, read(far(kToldAt + slot * kWordStride)));
    const uint64_t go = cursor + 1;
    write(near(slot * kWordStride), &go, 8);
    ASSERT_TRUE(endsOrIsEnded()) << words;
    std::vector<uint64_t> seen(kSlots * kListStride / 8);
    write(seen.data(), far(kListAt), kSlots * kListStride);
    for (uint32_t i = 0; i < seen.size(); ++i) {
      const uint32_t in = i - static_cast<uint32_t>(slot) * kMost;
      ASSERT_EQ(in < words ? 1000 + in : 0, seen[i]) << words << " words, " << i;
    }
    EXPECT_EQ(cursor + 1, read(far(kToldAt + slot * kWordStride)));
    EXPECT_EQ(kShape, read(far(kToldAt + slot * kWordStride + kShapeAt)));
    EXPECT_EQ(7u, read(far(kToldAt + slot * kWordStride + kRegionsAt)));
    EXPECT_EQ(cursor + 1, get(kCompletionAt));
    ++cursor;
  }
}

TEST_P(ListKernel, HeadsThatAreReleasedTellNothing) {
  ASSERT_OK(launchListHead(headOf(0, 40)));
  waits();
  set(kAbortAt, 1);
  ASSERT_TRUE(ends());
  EXPECT_EQ(0u, read(far(kToldAt)));
  EXPECT_EQ(0u, read(far(kListAt)));
  EXPECT_EQ(kReleasedFault, get(kFaultAt));
  EXPECT_EQ(1u, read(word(kEndedAt)));
  EXPECT_EQ(1u, get(kCompletionAt));
}

// By one block and by all of them, from the device's memory and from the host's, at any alignment,
// into many regions; those of odd numbers come while it waits.
TEST_P(ListKernel, PutsGoWhereThePlacesSay) {
  std::minstd_rand random(3);
  uint64_t cursor = 0;
  for (const uint32_t count : {1u, 2u, 33u, 511u, 600u, 4096u})
    for (const uint32_t regions : {1u, 3u, 256u})
      for (const uint64_t most : {1u, 300u, 20000u}) {
        if (uint64_t{count} * most > (2 << 20)) continue;
        SCOPED_TRACE(std::to_string(count) + " pieces of up to " + std::to_string(most) +
                     " bytes, " + std::to_string(regions) + " regions");
        std::memset(pinned(kTableAt), 0, kTableSlots * sizeof(NamedRegion));
        CUDA_OK(cudaMemset(near(kMirrorAt), 0, kTableSlots * sizeof(MirroredRegion)));
        // Region i begins 16 * i behind the first.
        const uint64_t room = kMemoryBytes - kSourceAt - 8192;
        std::vector<Place> places;
        std::vector<size_t> at;
        size_t end = 0, sourceBytes = 0;
        for (uint32_t i = 0; i < count; ++i) {
          const uint64_t region = random() % regions, bytes = 1 + random() % most;
          if (end < 16 * region) end = 16 * region;
          at.push_back(end);
          places.push_back({region, end - 16 * region, bytes});
          end += bytes + random() % 9;
          sourceBytes += bytes + 3;
        }
        ASSERT_LT(end, room);
        CUDA_OK(cudaMemset(far(kSourceAt), 0xE7, end + 64));
        CUDA_OK(cudaDeviceSynchronize());
        const auto data = fillSource(sourceBytes, count);
        std::vector<uint8_t> expected(end + 64, 0xE7);
        size_t from = 0;
        for (uint32_t i = 0; i < count; ++i) {
          std::memcpy(expected.data() + at[i], data.data() + from, places[i].bytes);
          from += places[i].bytes + 3;
        }
        for (uint32_t i = 0; i < regions; i += 2) name(100 + i, far(kSourceAt + 16 * i), room);
        ListPutLaunch launch = putOf(cursor, places, /*isFar=*/count == 33);
        launch.overlapsEnd = count != 2;
        if (count == 600) launch.ctas = 5;
        ASSERT_OK(launchListPut(launch));
        waits();
        post(cursor, places, regions);
        for (uint32_t i = 1; i < regions; i += 2) name(100 + i, far(kSourceAt + 16 * i), room);
        ASSERT_TRUE(endsOrIsEnded());
        ASSERT_TRUE(expected == bytesOf(far(kSourceAt), end + 64));
        const size_t told = kToldAt + cursor % kSlots * kWordStride;
        EXPECT_EQ(cursor + 1, read(far(told)));
        EXPECT_EQ(kShape, read(far(told + kShapeAt)));
        EXPECT_EQ(cursor + 1, get(kCompletionAt));
        EXPECT_EQ(0u, get(kFaultAt));
        EXPECT_EQ(0u, read(word(kArrivalsAt)));
        ++cursor;
      }
}

// One bad place, or another shape: nothing goes anywhere, and both sides hear of it.
TEST_P(ListKernel, PutsThatDoNotFitAreReportedAndTold) {
  constexpr uint64_t kRoom = 500000;
  name(100, far(kSourceAt), kRoom);
  name(101, far(kSourceAt), kRoom);
  (void)fillSource(2 * kRoom, 5);
  struct Case {
    Place bad;
    uint64_t regions = 2, shape = kShape;
  };
  uint64_t cursor = 0;
  for (const uint64_t each : {uint64_t{90}, uint64_t{2000}})
    for (const Case& it :
         {Case{{0, kRoom - each + 1, each}}, Case{{1, kRoom + 1, each}}, Case{{2, 0, each}},
          Case{{65535, 0, each}}, Case{{1, (uint64_t{1} << 48) - 1, each}},
          Case{{1, 0, each}, PieceNames::kMostRegions + 1}, Case{{1, 0, each}, ~uint64_t{0}},
          Case{{1, 0, each}, 2, kShape + 1}}) {
      std::vector<Place> places;
      for (uint64_t i = 0; i < 100; ++i) places.push_back({i % 2, i * each, each});
      places[70] = it.bad;
      CUDA_OK(cudaMemset(far(kSourceAt), 0, kRoom + 4096));
      CUDA_OK(cudaDeviceSynchronize());
      set(kFaultAt, 0);
      post(cursor, places, it.regions, it.shape);
      ASSERT_OK(launchListPut(putOf(cursor, places)));
      ASSERT_TRUE(endsOrIsEnded());
      EXPECT_EQ(99u, get(kFaultAt)) << cursor;
      EXPECT_EQ(cursor + 1, get(kCompletionAt));
      EXPECT_EQ(cursor + 1, read(far(kToldAt + cursor % kSlots * kWordStride)));
      EXPECT_TRUE(std::vector<uint8_t>(kRoom + 4096) == bytesOf(far(kSourceAt), kRoom + 4096));
      ++cursor;
    }
}

// Where it waits for the other side, and where for a region.
TEST_P(ListKernel, PutsThatAreReleasedTellNothing) {
  for (const uint64_t each : {uint64_t{90}, uint64_t{5000}})
    for (const bool isPosted : {false, true}) {
      std::vector<Place> places;
      for (uint64_t i = 0; i < 100; ++i) places.push_back({i % 2, i * each, each});
      CUDA_OK(cudaMemset(near(), 0, 4096));
      CUDA_OK(cudaMemset(words_, 0, 4096));
      CUDA_OK(cudaDeviceSynchronize());
      for (const size_t at : {kAbortAt, kFaultAt, kCompletionAt}) set(at, 0);
      name(100, far(kSourceAt), kMemoryBytes - kSourceAt);
      if (isPosted) post(0, places, 2);
      ASSERT_OK(launchListPut(putOf(0, places)));
      waits();
      set(kAbortAt, 1);
      ASSERT_TRUE(ends());
      EXPECT_EQ(1u, get(kCompletionAt));
      EXPECT_EQ(kReleasedFault, get(kFaultAt));
      EXPECT_EQ(1u, read(word(kEndedAt)));
      EXPECT_EQ(0u, read(far(kToldAt)));
      EXPECT_EQ(0u, read(word(kArrivalsAt)));
      EXPECT_EQ(0u, read(far(kSourceAt)));
    }
}

TEST_P(ListKernel, WhatCannotRunIsRefused) {
  const std::vector<Place> places{{0, 0, 100}};
  const auto refuses = [&](auto change) {
    ListPutLaunch launch = putOf(0, places);
    change(launch.job);
    return launchListPut(launch).code() == Code::kInvalidArgument;
  };
  EXPECT_TRUE(refuses([](ListPutJob& job) { job.count = 0; }));
  EXPECT_TRUE(refuses([](ListPutJob& job) { job.count = PieceNames::kMostPieces + 1; }));
  EXPECT_TRUE(refuses([](ListPutJob& job) { job.slots = 3; }));
  EXPECT_TRUE(refuses([](ListPutJob& job) { job.room.pieces = nullptr; }));
  EXPECT_TRUE(refuses([](ListPutJob& job) { job.list.strideBytes -= 8; }));
  EXPECT_TRUE(refuses([](ListPutJob& job) { job.table.entries = nullptr; }));
  EXPECT_TRUE(refuses([](ListPutJob& job) {
    job.tiles = kAloneListTiles + 1;
    job.arrivals = nullptr;
  }));
  EXPECT_EQ(Code::kInvalidArgument, launchListHead(headOf(0, 0)).code());
  EXPECT_EQ(Code::kInvalidArgument,
            launchListHead(headOf(0, PieceNames::kMostBytes / 8 + 1)).code());
}

INSTANTIATE_TEST_SUITE_P(FarSide, ListKernel, testing::Values(0, 1),
                         [](const auto& far) { return far.param == 0 ? "SameGpu" : "OtherGpu"; });

}  // namespace
}  // namespace peerlane::kernel
