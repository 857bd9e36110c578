// SPDX-License-Identifier: Apache-2.0
//
// The get kernels: bytes come from where a slot says, what is checked, what releases, what both
// ends are told; the far side on the same GPU and on another.
#include "peerlane/program/kernel/message/get_kernel.h"

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "peerlane/program/model/op.h"
#include "tests/core/expect_ok.h"
#include "tests/gpu/kernel_fixture.h"

namespace peerlane::kernel {
namespace {

constexpr uint32_t kStride = 64;
constexpr size_t kBufferBytes = 2 << 20, kDataAt = 32 << 10;
// Bytes in this side's memory and in the far one's: rings, and what launches share.
constexpr size_t kOfferedAt = 0, kCursorAt = 2048, kArrivalsAt = 2112, kPlaceAt = 2176,
                 kEndedAt = 2240;
constexpr size_t kTakenAt = 0, kAcceptedAt = 8;
constexpr uint64_t kAllocation = 77, kGeneration = 5, kOffset = 4096;
constexpr uint64_t kSizes[] = {1, 2049, 65536, 70001, kAlonePutBytes, kAlonePutBytes + 1, 1000001};

class GetKernel : public MessageKernelFixture {
 protected:
  GetKernel() : MessageKernelFixture(kBufferBytes) {}
  Status load() override { return loadGetKernels(); }

  uint64_t readSlot(const std::byte* ring, uint64_t cursor, size_t at = 0) const {
    return read(ring + cursor % kSlots * kStride + at);
  }
  RingWord ring(std::byte* base, int32_t delta) const {
    return {.base = base, .strideBytes = kStride, .delta = delta};
  }
  GetLaunch getOf(uint64_t cursor, std::byte* to, uint64_t bytes) const {
    auto launch = launchOf<GetLaunch>(cursor);
    GetJob& job = launch.job;
    job.to = to;
    job.bytes = bytes;
    job.wait = ring(near(kOfferedAt), 1);
    job.accept = ring(far(kTakenAt + kAcceptedAt), 1);
    job.tell = ring(far(kTakenAt), 1);
    job.checkAt = 8;
    job.allocationAt = 16;
    job.generationAt = 24;
    job.offsetAt = 32;
    job.expected = bytes;
    job.table = {.entries = table(), .slots = kTableSlots};
    job.place = reinterpret_cast<PutPlace*>(near(kPlaceAt));
    job.arrivals = reinterpret_cast<uint32_t*>(near(kArrivalsAt));
    return launch;
  }
  // Of the side that would wait here for its message to be fetched.
  GetEndLaunch endOf(uint64_t cursor) const {
    auto launch = launchOf<GetEndLaunch>(cursor);
    launch.job.wait = ring(far(kTakenAt), 1);
    launch.job.accepted = ring(far(kTakenAt + kAcceptedAt), 1);
    return launch;
  }
  void nameData(uint64_t bytes) const {
    name(namedRegionSlot(kAllocation, kTableSlots), kAllocation, kGeneration, far(kDataAt), bytes);
  }
  void offer(uint64_t cursor, uint64_t bytes, uint64_t offset = kOffset) const {
    const uint64_t words[] = {bytes, kAllocation, kGeneration, offset};
    std::byte* const slot = near(kOfferedAt + cursor % kSlots * kStride);
    write(slot + 8, words, sizeof words);
    write(slot, cursor + 1);
  }
};

TEST_P(GetKernel, BytesComeFromWhereTheSlotSays) {
  nameData(kOffset + (1 << 20));
  uint64_t cursor = 0;
  for (const uint64_t bytes : kSizes)
    for (const size_t shift : {size_t{0}, size_t{5}})
      for (const uint32_t ctas : {0u, 7u}) {
        const auto data = fill(far(kDataAt + kOffset + shift), bytes, cursor + 7);
        std::byte* const to = near(kDataAt + 3);
        CUDA_OK(cudaMemset(to, 0xE7, bytes + 64));
        CUDA_OK(cudaDeviceSynchronize());
        GetLaunch launch = getOf(cursor, to, bytes);
        launch.ctas = ctas;
        launch.overlapsEnd = ctas == 0;
        startWaiting(launch, launchGet);
        EXPECT_EQ(cursor < kSlots ? 0 : cursor + 1 - kSlots, readSlot(far(kTakenAt), cursor));
        offer(cursor, bytes, kOffset + shift);
        ASSERT_TRUE(endsOrIsEnded()) << bytes;
        ASSERT_EQ(data, bytesOf(to, bytes)) << bytes;
        ASSERT_EQ(std::vector<uint8_t>(64, 0xE7), bytesOf(to + bytes, 64));
        ASSERT_EQ(cursor + 1, readSlot(far(kTakenAt), cursor, kAcceptedAt));
        ASSERT_EQ(cursor + 1, readSlot(far(kTakenAt), cursor));
        ASSERT_EQ(cursor + 1, get(kCompletion));
        ASSERT_EQ(0u, get(kFault));
        ASSERT_EQ(0u, read(near(kArrivalsAt)) & 0xffffffff);
        ++cursor;
      }
}

TEST_P(GetKernel, WaitsForARegionThatComes) {
  for (const uint64_t bytes : {uint64_t{3000}, kAlonePutBytes + 1}) {
    std::fill_n(table(), kTableSlots, NamedRegion{});
    const auto data = fill(far(kDataAt + kOffset), bytes, 8);
    offer(0, bytes);
    startWaiting(getOf(0, near(kDataAt), bytes), launchGet);
    nameData(kOffset + bytes);
    ASSERT_TRUE(endsOrIsEnded());
    EXPECT_EQ(data, bytesOf(near(kDataAt), bytes));
  }
}

// Told with the credit, and not accepted; nothing is copied.
TEST_P(GetKernel, WhatDoesNotFitIsRefused) {
  const uint64_t room = 200000;
  nameData(room);
  uint64_t cursor = 0;
  for (const uint64_t bytes : {uint64_t{3000}, kAlonePutBytes + 1})
    for (const auto& [offset, offered] : {std::pair<uint64_t, uint64_t>{room - bytes + 1, bytes},
                                          {room + 1, bytes},
                                          {~uint64_t{0} - 500, bytes},
                                          {0, bytes + 1},
                                          {0, bytes | uint64_t{1} << 63}}) {
      CUDA_OK(cudaMemset(near(kDataAt), 0, room));
      CUDA_OK(cudaDeviceSynchronize());
      (void)fill(far(kDataAt), room, cursor);
      set(kFault, 0);
      offer(cursor, offered, offset);
      ASSERT_OK(launchGet(getOf(cursor, near(kDataAt), bytes)));
      ASSERT_TRUE(endsOrIsEnded());
      EXPECT_EQ(99u, get(kFault)) << offset;
      EXPECT_EQ(cursor + 1, get(kCompletion));
      EXPECT_EQ(cursor + 1, readSlot(far(kTakenAt), cursor));
      EXPECT_EQ(0u, readSlot(far(kTakenAt), cursor, kAcceptedAt));
      EXPECT_EQ(std::vector<uint8_t>(room), bytesOf(near(kDataAt), room));
      ++cursor;
    }
}

TEST_P(GetKernel, ReleasedItTellsNothing) {
  for (const uint64_t bytes : {uint64_t{3000}, kAlonePutBytes + 1})
    for (const bool isOffered : {false, true}) {
      CUDA_OK(cudaMemset(near(), 0, 4096));
      CUDA_OK(cudaDeviceSynchronize());
      if (isOffered) offer(0, bytes);  // of a region that never comes
      startWaiting(getOf(0, near(kDataAt), bytes), launchGet);
      set(kAbort, 1);
      ASSERT_TRUE(ends());
      EXPECT_EQ(1u, get(kCompletion));
      EXPECT_EQ(kReleasedFault, get(kFault));
      EXPECT_EQ(0u, readSlot(far(kTakenAt), 0));
      EXPECT_EQ(0u, read(near(kArrivalsAt)) & 0xffffffff);
    }
}

TEST_P(GetKernel, BehindOneThatWasReleasedNothingIsFetched) {
  nameData(kOffset + 200000);
  GetLaunch fetch = getOf(0, near(kDataAt), 3000);
  GetEndLaunch end = endOf(0);
  fetch.job.ended = end.job.ended = reinterpret_cast<uint64_t*>(near(kEndedAt));
  const auto released = [&](const auto& launch, auto start) {
    write(near(kEndedAt), 0);
    startWaiting(launch, start);
    set(kAbort, 1);
    ASSERT_TRUE(ends());
    EXPECT_EQ(1u, read(near(kEndedAt)));
  };
  released(end, launchGetEnd);
  released(fetch, launchGet);
  offer(0, 3000);
  set(kAbort, 0);
  set(kFault, 0);
  set(kCompletion, 0);
  ASSERT_OK(launchGet(fetch));
  ASSERT_TRUE(endsOrIsEnded());
  EXPECT_EQ(1u, get(kCompletion));
  EXPECT_EQ(kReleasedFault, get(kFault));
  EXPECT_EQ(0u, readSlot(far(kTakenAt), 0));
}

// The words lie on the far side here, as the launches of a fetch before have left them.
TEST_P(GetKernel, TheSenderHearsWhatBecameOfIt) {
  startWaiting(endOf(0), launchGetEnd);
  write(far(kTakenAt + kAcceptedAt), 1);
  write(far(kTakenAt), 1);
  ASSERT_TRUE(endsOrIsEnded());
  EXPECT_EQ(1u, get(kCompletion));
  EXPECT_EQ(0u, get(kFault));
  // Refused.
  startWaiting(endOf(kSlots), launchGetEnd);
  write(far(kTakenAt), kSlots + 1);
  ASSERT_TRUE(endsOrIsEnded());
  EXPECT_EQ(99u, get(kFault));
  // A later message of the slot has been accepted meanwhile.
  set(kFault, 0);
  write(far(kTakenAt + kAcceptedAt), 2 * kSlots + 1);
  ASSERT_OK(launchGetEnd(endOf(kSlots)));
  ASSERT_TRUE(endsOrIsEnded());
  EXPECT_EQ(0u, get(kFault));
  startWaiting(endOf(1), launchGetEnd);
  set(kAbort, 1);
  ASSERT_TRUE(ends());
  EXPECT_EQ(2u, get(kCompletion));
  EXPECT_EQ(kReleasedFault, get(kFault));
}

// A graph counts in memory of the device.
TEST_P(GetKernel, ReplaysCount) {
  nameData(kOffset + (1 << 20));
  uint64_t cursor = 0;
  for (const uint64_t bytes : {uint64_t{3000}, kAlonePutBytes + 1}) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    CUDA_OK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    GetLaunch launch = getOf(0, near(kDataAt), bytes);
    launch.job.cursorWord = reinterpret_cast<uint64_t*>(near(kCursorAt));
    launch.job.advance = 1;
    const Status captured = launchGet(launch);
    CUDA_OK(cudaStreamEndCapture(stream_, &graph));
    ASSERT_OK(captured);
    CUDA_OK(cudaGraphInstantiate(&executable, graph, 0));
    CUDA_OK(cudaGraphDestroy(graph));
    for (int replay = 0; replay < 6; ++replay, ++cursor) {
      const auto data = fill(far(kDataAt + kOffset), bytes, cursor);
      CUDA_OK(cudaGraphLaunch(executable, stream_));
      EXPECT_FALSE(ends(20));
      offer(cursor, bytes);
      ASSERT_TRUE(endsOrIsEnded());
      EXPECT_EQ(data, bytesOf(near(kDataAt), bytes)) << cursor;
      EXPECT_EQ(cursor + 1, readSlot(far(kTakenAt), cursor));
      EXPECT_EQ(cursor + 1, read(near(kCursorAt)));
    }
    CUDA_OK(cudaGraphExecDestroy(executable));
  }
}

TEST_P(GetKernel, BadInputIsRefused) {
  const auto refused = [&](void (*change)(GetJob&)) {
    GetLaunch launch = getOf(0, near(kDataAt), kAlonePutBytes + 1);
    change(launch.job);
    return launchGet(launch).code();
  };
  EXPECT_EQ(Code::kInvalidArgument, refused([](GetJob& job) { job.slots = 3; }));
  EXPECT_EQ(Code::kInvalidArgument, refused([](GetJob& job) { job.slots = 64; }));
  EXPECT_EQ(Code::kInvalidArgument, refused([](GetJob& job) { job.tell.base = nullptr; }));
  EXPECT_EQ(Code::kInvalidArgument, refused([](GetJob& job) { job.accept.base += 4; }));
  EXPECT_EQ(Code::kInvalidArgument, refused([](GetJob& job) { job.offsetAt = 12; }));
  EXPECT_EQ(Code::kInvalidArgument, refused([](GetJob& job) { job.to = nullptr; }));
  EXPECT_EQ(Code::kInvalidArgument, refused([](GetJob& job) { job.place = nullptr; }));
  EXPECT_EQ(Code::kInvalidArgument, refused([](GetJob& job) { job.advance = 1; }));
  EXPECT_EQ(Code::kInvalidArgument, refused([](GetJob& job) { job.table = {}; }));
  GetEndLaunch end = endOf(0);
  end.job.accepted.base = nullptr;
  EXPECT_EQ(Code::kInvalidArgument, launchGetEnd(end).code());
  end = endOf(0);
  end.job.slots = 0;
  EXPECT_EQ(Code::kInvalidArgument, launchGetEnd(end).code());
}

INSTANTIATE_TEST_SUITE_P(FarSide, GetKernel, testing::Values(0, 1), [](const auto& far) {
  return std::string(far.param == 0 ? "OnOneGpu" : "OnAnother");
});

}  // namespace
}  // namespace peerlane::kernel
