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

namespace peerlane::kernel {
namespace {

#define CUDA_OK(call) ASSERT_EQ(cudaSuccess, (call)) << cudaGetErrorString(cudaGetLastError())

constexpr uint32_t kSlots = 4, kStride = 64;
constexpr size_t kBufferBytes = 2 << 20, kDataAt = 32 << 10;
// Bytes in this side's memory and in the far one's: rings, and what launches share.
constexpr size_t kOfferedAt = 0, kCursorAt = 2048, kArrivalsAt = 2112, kPlaceAt = 2176,
                 kEndedAt = 2240;
constexpr size_t kTakenAt = 0, kAcceptedAt = 8;
// Indices of words in pinned memory.
constexpr size_t kAbort = 8, kCompletion = 16, kFault = 24, kTable = 64;
constexpr uint32_t kTableSlots = 40;
constexpr uint64_t kAllocation = 77, kGeneration = 5, kOffset = 4096;
constexpr uint64_t kSizes[] = {1, 2049, 65536, 70001, kAlonePutBytes, kAlonePutBytes + 1, 1000001};

// The parameter: which device is the far side.
class GetKernel : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count <= GetParam())
      GTEST_SKIP() << "needs " << GetParam() + 1 << " GPUs";
    if (GetParam() != 0) {
      int possible = 0;
      for (const int device : {0, GetParam()}) {
        CUDA_OK(cudaDeviceCanAccessPeer(&possible, device, GetParam() - device));
        if (possible == 0) GTEST_SKIP() << "needs GPUs that reach each other";
        CUDA_OK(cudaSetDevice(device));
        const cudaError_t error = cudaDeviceEnablePeerAccess(GetParam() - device, 0);
        ASSERT_TRUE(error == cudaSuccess || error == cudaErrorPeerAccessAlreadyEnabled);
        (void)cudaGetLastError();
      }
    }
    CUDA_OK(cudaSetDevice(GetParam()));
    CUDA_OK(cudaMalloc(&far_, kBufferBytes));
    CUDA_OK(cudaMemset(far_, 0, kBufferBytes));
    CUDA_OK(cudaDeviceSynchronize());
    CUDA_OK(cudaSetDevice(0));
    EXPECT_OK(loadGetKernels());
    CUDA_OK(cudaMalloc(&near_, kBufferBytes));
    CUDA_OK(cudaMemset(near_, 0, kBufferBytes));
    CUDA_OK(cudaHostAlloc(&pinned_, 8192, cudaHostAllocPortable | cudaHostAllocMapped));
    std::memset(pinned_, 0, 8192);
    CUDA_OK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    // Streams share hardware queues by turns, so the next one has another.
    CUDA_OK(cudaStreamCreateWithFlags(&copies_, cudaStreamNonBlocking));
    CUDA_OK(cudaDeviceSynchronize());
  }
  void TearDown() override {
    for (cudaStream_t stream : {stream_, copies_})
      if (stream != nullptr) (void)cudaStreamDestroy(stream);
    (void)cudaFree(far_);
    (void)cudaFree(near_);
    (void)cudaFreeHost(pinned_);
  }

  std::byte* far(size_t offset = 0) const { return static_cast<std::byte*>(far_) + offset; }
  std::byte* near(size_t offset = 0) const { return static_cast<std::byte*>(near_) + offset; }
  uint64_t* pinned(size_t index) const { return static_cast<uint64_t*>(pinned_) + index; }
  void set(size_t index, uint64_t value) const {
    std::atomic_ref<uint64_t>(*pinned(index)).store(value, std::memory_order_release);
  }
  uint64_t get(size_t index) const {
    return std::atomic_ref<uint64_t>(*pinned(index)).load(std::memory_order_acquire);
  }
  // Beside a kernel that may be waiting.
  void write(void* to, const void* from, size_t bytes) const {
    EXPECT_EQ(cudaSuccess, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, copies_));
    EXPECT_EQ(cudaSuccess, cudaStreamSynchronize(copies_));
  }
  void write(void* to, uint64_t value) const { write(to, &value, 8); }
  uint64_t read(const void* from) const {
    uint64_t value = 0;
    write(&value, from, 8);
    return value;
  }
  uint64_t readSlot(const std::byte* ring, uint64_t cursor, size_t at = 0) const {
    return read(ring + cursor % kSlots * kStride + at);
  }
  std::vector<uint8_t> bytesOf(const void* from, size_t bytes) const {
    std::vector<uint8_t> found(bytes);
    write(found.data(), from, bytes);
    return found;
  }
  std::vector<uint8_t> fill(std::byte* to, size_t bytes, uint64_t seed) const {
    std::mt19937 random(static_cast<uint32_t>(seed));
    std::vector<uint8_t> data(bytes);
    for (uint8_t& byte : data) byte = static_cast<uint8_t>(random());
    write(to, data.data(), bytes);
    return data;
  }
  bool ends(int milliseconds = 5000) const {
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
    while (cudaStreamQuery(stream_) == cudaErrorNotReady)
      if (std::chrono::steady_clock::now() > until) return false;
    return true;
  }
  // Ends the kernel if it does not end by itself.
  bool endsOrIsEnded() const {
    if (ends()) return true;
    set(kAbort, 1);
    (void)ends();
    return false;
  }

  RingWord ring(std::byte* base, int32_t delta) const {
    return {.base = base, .strideBytes = kStride, .delta = delta};
  }
  template <class Launch>
  Launch launchOf(uint64_t cursor) const {
    Launch launch;
    launch.job.cursor = cursor;
    launch.job.abort = pinned(kAbort);
    launch.job.fault = pinned(kFault);
    launch.job.faultValue = 99;
    launch.job.completion = pinned(kCompletion);
    launch.job.completionValue = cursor + 1;
    launch.job.slots = kSlots;
    launch.stream = stream_;
    return launch;
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
  // Starts a launch that must wait.
  template <class Launch>
  void startWaiting(const Launch& launch, Status (*start)(const Launch&)) const {
    set(kCompletion, 0);
    set(kAbort, 0);
    set(kFault, 0);
    ASSERT_OK(start(launch));
    EXPECT_FALSE(ends(20));
    EXPECT_EQ(0u, get(kCompletion));
  }
  NamedRegion* table() const { return reinterpret_cast<NamedRegion*>(pinned(kTable)); }
  void name(uint64_t bytes) const {
    NamedRegion& region = table()[namedRegionSlot(kAllocation, kTableSlots)];
    region.allocation = kAllocation;
    region.generation = kGeneration;
    region.bytes = bytes;
    std::atomic_ref<const std::byte*>(region.base).store(far(kDataAt), std::memory_order_release);
  }
  void offer(uint64_t cursor, uint64_t bytes, uint64_t offset = kOffset) const {
    const uint64_t words[] = {bytes, kAllocation, kGeneration, offset};
    std::byte* const slot = near(kOfferedAt + cursor % kSlots * kStride);
    write(slot + 8, words, sizeof words);
    write(slot, cursor + 1);
  }

  void* far_ = nullptr;
  void* near_ = nullptr;
  void* pinned_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaStream_t copies_ = nullptr;
};

TEST_P(GetKernel, BytesComeFromWhereTheSlotSays) {
  name(kOffset + (1 << 20));
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
    name(kOffset + bytes);
    ASSERT_TRUE(endsOrIsEnded());
    EXPECT_EQ(data, bytesOf(near(kDataAt), bytes));
  }
}

// Told with the credit, and not accepted; nothing is copied.
TEST_P(GetKernel, WhatDoesNotFitIsRefused) {
  const uint64_t room = 200000;
  name(room);
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
  name(kOffset + 200000);
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
  name(kOffset + (1 << 20));
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
