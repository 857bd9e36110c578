// SPDX-License-Identifier: Apache-2.0
//
// The step kernel: copies of any size, rings over several laps, what releases and what faults, late
// places; the far side on the same GPU and on another.
#include "peerlane/program/kernel/message/step_kernel.h"

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "peerlane/program/model/op.h"
#include "tests/core/expect_ok.h"
#include "tests/core/soon.h"
#include "tests/gpu/kernel_fixture.h"

namespace peerlane::kernel {
namespace {

constexpr size_t kBufferBytes = 3 << 20;
// Indices of words in pinned memory, in device memory.
constexpr size_t kWord = 0;
constexpr size_t kArrivals = 0, kCursor = 16, kCursor2 = 32, kStored = 48, kEnded = 64;

StepPlace at(void* base, uint64_t offset = 0) {
  return {.base = static_cast<std::byte*>(base), .offset = offset};
}
StepPlace inRing(void* base, uint32_t slots, uint32_t stride, uint64_t offset = 0,
                 int64_t slotDelta = 0) {
  return {.base = static_cast<std::byte*>(base),
          .offset = offset,
          .slots = slots,
          .strideBytes = stride,
          .slotDelta = slotDelta};
}
StepPlace latePlace(uint64_t offset) {
  return {.offset = offset, .late = true};
}
Step wait(const StepPlace& word, int64_t delta, bool byCursor = false) {
  return {.code = StepCode::kWait, .to = word, .delta = delta, .byCursor = byCursor};
}
Step copy(const StepPlace& to, const StepPlace& from, uint64_t bytes, bool early = false) {
  return {.code = StepCode::kCopy, .to = to, .from = from, .bytes = bytes, .early = early};
}
Step store(const StepPlace& word, int64_t delta, bool byCursor = false, bool readsOnly = false) {
  return {.code = StepCode::kStore,
          .to = word,
          .delta = delta,
          .byCursor = byCursor,
          .readsOnly = readsOnly};
}
Step expect(const StepPlace& word, int64_t value) {
  return {.code = StepCode::kExpect, .to = word, .delta = value};
}

class StepKernel : public MessageKernelFixture {
 protected:
  StepKernel() : MessageKernelFixture(kBufferBytes) {}
  Status load() override { return loadStepKernels(); }

  uint64_t* word(size_t index) const { return static_cast<uint64_t*>(words_) + index; }
  StepLaunch launchOf(const std::vector<Step>& steps, uint32_t ctas = 1) const {
    StepLaunch launch;
    launch.steps = steps.data();
    launch.count = static_cast<uint32_t>(steps.size());
    launch.abort = pinned(kAbort);
    launch.completion = {pinned(kCompletion), {nullptr, 1}};
    launch.fault = pinned(kFault);
    launch.faultValue = 99;
    launch.ctas = ctas;
    launch.arrivals = reinterpret_cast<uint32_t*>(word(kArrivals));
    launch.stream = stream_;
    launch.late.table = {.entries = table(), .slots = kTableSlots};
    return launch;
  }
};

TEST_P(StepKernel, CopiesAnySizeAtAnyAlignment) {
  constexpr size_t kRoom = 1100 << 10;
  const auto source = fill(near(), kRoom, 1);
  const auto envelope = fill(near(2 << 20), 56, 2);
  uint64_t ticket = 0;
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{3}, size_t{8}, size_t{13}, size_t{64},
                             size_t{65}, size_t{100}, size_t{512}, size_t{1000}, size_t{4096},
                             size_t{8192}, size_t{8200}, size_t{70001}, size_t{1} << 20})
    for (const auto& [fromShift, toShift] :
         {std::pair<size_t, size_t>{0, 0}, {8, 0}, {4, 12}, {1, 0}, {0, 3}, {5, 14}})
      for (const uint32_t ctas : {1u, 3u, 100u})
        for (const bool early : {false, true}) {
          CUDA_OK(setNow(far(), 0xE7, bytes + 256));
          CUDA_OK(setNow(far(2 << 20), 0, 64));
          CUDA_OK(cudaDeviceSynchronize());
          ++ticket;
          set(kCompletion, 0);
          StepLaunch launch = launchOf({}, ctas);
          const std::vector<Step> steps = {
              copy(at(far(2 << 20), 8), at(near(2 << 20)), 56, early),
              copy(at(far(), 64 + toShift), at(near(fromShift)), bytes, early),
              store(at(word(kStored)), static_cast<int64_t>(ticket))};
          launch.steps = steps.data();
          launch.count = 3;
          ASSERT_OK(launchSteps(launch));
          ASSERT_TRUE(endsOrIsEnded());
          std::vector<uint8_t> expected(bytes + 256, 0xE7);
          std::memcpy(expected.data() + 64 + toShift, source.data() + fromShift, bytes);
          ASSERT_EQ(expected, bytesOf(far(), bytes + 256))
              << bytes << " bytes from +" << fromShift << " to +" << toShift << ", " << ctas;
          ASSERT_EQ(envelope, bytesOf(far((2 << 20) + 8), 56));
          ASSERT_EQ(ticket, read(word(kStored)));
          ASSERT_EQ(0u, read(word(kArrivals)));
          ASSERT_EQ(1u, get(kCompletion));
          ASSERT_EQ(0u, get(kFault));
        }
}

// One lane of messages: the inbox lies on the far side, the answers near.
struct Lane {
  uint32_t slots;
  std::byte *inbox, *answers;
  static constexpr uint32_t kStride = 256, kAnswerStride = 64;
};

std::vector<Step> sender(const Lane& lane, std::byte* envelope, std::byte* payload,
                         uint64_t bytes) {
  return {
      wait(inRing(lane.answers, lane.slots, Lane::kAnswerStride), 1 - int64_t{lane.slots}, true),
      copy(inRing(lane.inbox, lane.slots, Lane::kStride, 8), at(envelope), 56, true),
      copy(inRing(lane.inbox, lane.slots, Lane::kStride, 64), at(payload), bytes, true),
      store(inRing(lane.inbox, lane.slots, Lane::kStride), 1, true)};
}

std::vector<Step> receiver(const Lane& lane, const StepPlace& to, uint64_t bytes, int64_t size) {
  return {wait(inRing(lane.inbox, lane.slots, Lane::kStride), 1, true),
          expect(inRing(lane.inbox, lane.slots, Lane::kStride, 16), size),
          copy(to, inRing(lane.inbox, lane.slots, Lane::kStride, 64), bytes),
          store(inRing(lane.answers, lane.slots, Lane::kAnswerStride), 1, true, true)};
}

TEST_P(StepKernel, MessagesGoRoundTheRingSeveralTimes) {
  for (const uint32_t slots : {1u, 3u, 4u}) {
    CUDA_OK(setNow(near(), 0, 4096));
    CUDA_OK(setNow(far(), 0, 4096));
    CUDA_OK(cudaDeviceSynchronize());
    const Lane lane{slots, far(), near()};
    write(near((1 << 20) + 8), 100);  // the envelope's second word is what the receiver expects
    for (uint64_t cursor = 0; cursor < 4 * slots + 2; ++cursor) {
      const auto payload = fill(near(2 << 20), 100, static_cast<uint32_t>(cursor));
      const auto send = sender(lane, near(1 << 20), near(2 << 20), 100);
      const auto receive = receiver(lane, at(near((2 << 20) + 4096)), 100, 100);
      for (const auto* steps : {&send, &receive}) {
        StepLaunch launch = launchOf(*steps);
        launch.cursor = cursor;
        launch.overlapsEnd = slots == 4;
        ASSERT_OK(launchSteps(launch));
      }
      ASSERT_TRUE(endsOrIsEnded()) << "slots " << slots << ", message " << cursor;
      ASSERT_EQ(payload, bytesOf(near((2 << 20) + 4096), 100));
      ASSERT_EQ(cursor + 1, read(near((cursor % slots) * 64)));
      ASSERT_EQ(0u, get(kFault));
    }
  }
}

TEST_P(StepKernel, AFullRingHoldsTheSenderBack) {
  const Lane lane{2, far(), near()};
  const auto send = sender(lane, near(1 << 20), near(2 << 20), 8);
  StepLaunch launch = launchOf(send);
  for (launch.cursor = 0; launch.cursor < 2; ++launch.cursor) ASSERT_OK(launchSteps(launch));
  ASSERT_TRUE(endsOrIsEnded());
  launch.cursor = 2;
  startWaiting(launch, launchSteps);
  EXPECT_EQ(1u, read(far()));
  write(near(), 1);
  ASSERT_TRUE(endsOrIsEnded());
  EXPECT_EQ(3u, read(far()));
}

// A graph of a send and a receive; the payload is the sender's cursor, which every replay changes.
TEST_P(StepKernel, ReplayedByAGraphItFollowsItsCursor) {
  constexpr uint32_t kReplays = 1000;
  for (const uint32_t slots : {3u, 8u, 4u}) {
    const bool overlapsEnd = slots == 4;
    CUDA_OK(setNow(near(), 0, 1 << 20));
    CUDA_OK(setNow(far(), 0, 4096));
    CUDA_OK(setNow(words_, 0, 4096));
    CUDA_OK(cudaDeviceSynchronize());
    const Lane lane{slots, far(), near()};
    write(near((1 << 20) + 8), 8);
    const auto send = sender(lane, near(1 << 20), reinterpret_cast<std::byte*>(word(kCursor)), 8);
    const auto receive = receiver(lane, inRing(near(65536), kReplays, 8), 8, 8);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    CUDA_OK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    StepLaunch launch = launchOf(send);
    launch.cursorWord = word(kCursor);
    launch.advance = 1;
    launch.completion = {};
    launch.overlapsEnd = overlapsEnd;
    ASSERT_OK(launchSteps(launch));
    launch = launchOf(receive);
    launch.cursorWord = word(kCursor2);
    launch.advance = 1;
    launch.completion = {pinned(kCompletion), {word(kCursor2), 1}};
    launch.overlapsEnd = overlapsEnd;
    ASSERT_OK(launchSteps(launch));
    CUDA_OK(cudaStreamEndCapture(stream_, &graph));
    CUDA_OK(cudaGraphInstantiate(&executable, graph, 0));
    for (uint32_t i = 0; i < kReplays; ++i) CUDA_OK(cudaGraphLaunch(executable, stream_));
    ASSERT_TRUE(endsOrIsEnded());
    const auto found = bytesOf(near(65536), kReplays * 8);
    for (uint64_t i = 0; i < kReplays; ++i) {
      uint64_t value = 0;
      std::memcpy(&value, found.data() + i * 8, 8);
      ASSERT_EQ(i, value);
    }
    EXPECT_EQ(kReplays, get(kCompletion));
    EXPECT_EQ(kReplays, read(word(kCursor)));
    EXPECT_EQ(0u, get(kFault));
    CUDA_OK(cudaGraphExecDestroy(executable));
    CUDA_OK(cudaGraphDestroy(graph));
  }
}

TEST_P(StepKernel, ReleasedByAbortOrPoisonItDoesNothingButComplete) {
  for (const uint32_t ctas : {1u, 20u})
    for (const bool byPoison : {false, true}) {
      set(kWord, 0);
      const size_t bytes = ctas == 1 ? 64 : 300000;
      (void)fill(near(), bytes, 4);
      const std::vector<Step> steps = {
          wait(at(pinned(kWord)), 1), copy(at(far()), at(near()), bytes),
          store(at(word(kStored)), 7), wait(at(pinned(kWord)), 2), store(at(word(kStored)), 8)};
      StepLaunch launch = launchOf(steps, ctas);
      launch.cursorWord = word(kCursor);
      launch.advance = 3;
      launch.ended = word(kEnded);
      CUDA_OK(setNow(word(kEnded), 0, 8));
      const uint64_t before = read(word(kCursor));
      startWaiting(launch, launchSteps);
      set(byPoison ? kWord : kAbort, byPoison ? kPoison + 3 : 1);
      ASSERT_TRUE(ends());
      EXPECT_EQ(1u, get(kCompletion));
      EXPECT_EQ(0u, read(word(kStored)));
      EXPECT_EQ(0u, read(word(kArrivals)));
      EXPECT_EQ(before + 3, read(word(kCursor)));
      // And so does the one behind it, which would not have to wait.
      set(kAbort, 0);
      set(kWord, 2);
      EXPECT_EQ(1u, read(word(kEnded)));
      ASSERT_OK(launchSteps(launch));
      ASSERT_TRUE(ends());
      EXPECT_EQ(0u, read(word(kStored)));
      EXPECT_EQ(std::vector<uint8_t>(bytes), bytesOf(far(), bytes));
    }
}

TEST_P(StepKernel, WhatAWaitIsForIsReadAfterIt) {
  for (const uint32_t ctas : {1u, 8u})
    for (const size_t bytes : {size_t{8}, size_t{2048}, size_t{200000}}) {
      set(kWord, 0);
      (void)fill(far(), bytes, 5);
      const std::vector<Step> steps = {wait(at(pinned(kWord)), 1),
                                       copy(at(near()), at(far()), bytes),
                                       store(at(word(kStored)), 1)};
      startWaiting(launchOf(steps, ctas), launchSteps);
      const auto data = fill(far(), bytes, 6);
      set(kWord, 1);
      ASSERT_TRUE(endsOrIsEnded());
      EXPECT_EQ(data, bytesOf(near(), bytes));
    }
}

TEST_P(StepKernel, StoresBetweenWaits) {
  for (const uint32_t ctas : {1u, 9u}) {
    set(kWord, 0);
    write(word(kStored), 0);
    write(word(kStored + 1), 0);
    const auto data = fill(near(), 100000, 7);
    const std::vector<Step> steps = {copy(at(far()), at(near()), 100000),
                                     store(at(word(kStored)), 5), wait(at(pinned(kWord)), 1),
                                     copy(at(far(1 << 20)), at(near()), 100000),
                                     store(at(word(kStored + 1)), 6)};
    StepLaunch launch = launchOf(steps, ctas);
    startWaiting(launch, launchSteps);
    EXPECT_TRUE(soon([&] { return read(word(kStored)) == 5; }));
    EXPECT_EQ(0u, read(word(kStored + 1)));
    set(kWord, 1);
    ASSERT_TRUE(endsOrIsEnded());
    EXPECT_EQ(data, bytesOf(far(), 100000));
    EXPECT_EQ(data, bytesOf(far(1 << 20), 100000));
    EXPECT_EQ(6u, read(word(kStored + 1)));
    EXPECT_EQ(0u, read(word(kArrivals)));
    EXPECT_EQ(1u, get(kCompletion));
  }
}

TEST_P(StepKernel, AnUnexpectedWordIsReportedAndLaterCopiesAreLeftOut) {
  for (const uint32_t ctas : {1u, 6u})
    for (const size_t bytes : {size_t{16}, size_t{100000}}) {
      CUDA_OK(setNow(far(), 0, kBufferBytes));
      CUDA_OK(cudaDeviceSynchronize());
      const auto data = fill(near(), bytes, 8);
      write(word(kStored + 8), 41);
      set(kFault, 0);
      set(kCompletion, 0);
      const std::vector<Step> steps = {
          copy(at(far()), at(near()), bytes), expect(at(word(kStored + 8)), 42),
          copy(at(far(1 << 20)), at(near()), bytes), store(at(word(kStored)), 9)};
      ASSERT_OK(launchSteps(launchOf(steps, ctas)));
      ASSERT_TRUE(endsOrIsEnded());
      EXPECT_EQ(99u, get(kFault));
      EXPECT_EQ(data, bytesOf(far(), bytes));
      EXPECT_EQ(std::vector<uint8_t>(bytes), bytesOf(far(1 << 20), bytes));
      EXPECT_EQ(9u, read(word(kStored)));
      EXPECT_EQ(1u, get(kCompletion));
    }
}

TEST_P(StepKernel, ALateRegionMayAppearWhileTheKernelWaits) {
  const uint64_t names[] = {77, 5, 4096};  // allocation, generation, offset
  write(near(1 << 20), names, sizeof names);
  const uint32_t first = namedRegionSlot(77, kTableSlots);
  for (uint32_t i = 0; i < 35; ++i) name(first + i, 1000 + i, 5, near(), 1);  // the search goes on
  name(first + 3, 77, 4, near(), kBufferBytes);                               // an older generation
  for (const uint32_t ctas : {1u, 7u})
    for (const bool push : {false, true}) {
      set(kTable + (first + 36) % kTableSlots * 4 + 2, 0);
      const auto data = fill(push ? near() : far(4096 + 256), 90000, push ? 10 : 11);
      const std::vector<Step> steps = {
          push ? copy(latePlace(256), at(near()), 90000) : copy(at(near()), latePlace(256), 90000),
          store(at(word(kStored)), 3)};
      StepLaunch launch = launchOf(steps, ctas);
      launch.late.envelope = at(near(1 << 20));
      launch.late.generationAt = 8;
      launch.late.offsetAt = 16;
      startWaiting(launch, launchSteps);
      name(first + 36, 77, 5, far(), 4096 + 256 + 90000);
      ASSERT_TRUE(endsOrIsEnded());
      EXPECT_EQ(data, bytesOf(push ? far(4096 + 256) : near(), 90000));
      EXPECT_EQ(0u, get(kFault));
      EXPECT_EQ(3u, read(word(kStored)));
      EXPECT_EQ(0u, read(word(kArrivals)));
    }
}

TEST_P(StepKernel, ALateRegionThatNeverComesIsAborted) {
  const std::vector<Step> steps = {copy(at(near()), latePlace(0), 64), store(at(word(kStored)), 3)};
  StepLaunch launch = launchOf(steps);
  launch.late.envelope = at(near(1 << 20));
  startWaiting(launch, launchSteps);
  set(kAbort, 1);
  ASSERT_TRUE(ends());
  EXPECT_EQ(1u, get(kCompletion));
  EXPECT_EQ(0u, read(word(kStored)));
}

TEST_P(StepKernel, ARangeOutsideOfALateRegionIsAFault) {
  name(namedRegionSlot(6, kTableSlots), 6, 1, far(), 10000);
  for (const uint64_t offset : {uint64_t{9001}, uint64_t{10001}, ~uint64_t{0} - 500})
    for (const uint32_t ctas : {1u, 3u}) {
      const uint64_t names[] = {6, 1, offset};
      write(near(1 << 20), names, sizeof names);
      set(kFault, 0);
      set(kCompletion, 0);
      const std::vector<Step> steps = {copy(latePlace(500), at(near()), 500),
                                       copy(at(far(1 << 20)), at(near()), 64),
                                       store(at(word(kStored)), 4)};
      StepLaunch launch = launchOf(steps, ctas);
      launch.late.envelope = at(near(1 << 20));
      launch.late.generationAt = 8;
      launch.late.offsetAt = 16;
      (void)fill(near(), 500, 12);
      ASSERT_OK(launchSteps(launch));
      ASSERT_TRUE(endsOrIsEnded());
      EXPECT_EQ(99u, get(kFault)) << offset;
      EXPECT_EQ(1u, get(kCompletion));
      EXPECT_EQ(4u, read(word(kStored)));
      EXPECT_EQ(std::vector<uint8_t>(12000), bytesOf(far(), 12000));
      EXPECT_EQ(std::vector<uint8_t>(64), bytesOf(far(1 << 20), 64));
    }
}

TEST_P(StepKernel, WhatCannotRunIsRefused) {
  const Step fine = store(at(word(kStored)), 1);
  for (const std::vector<Step>& steps : {std::vector<Step>(9, fine),
                                         {store(at(word(kStored), 4), 1)},
                                         {wait(latePlace(0), 1)},
                                         {copy(at(nullptr), at(near()), 8)},
                                         {copy(at(near()), latePlace(0), 8)}})
    EXPECT_EQ(Code::kInvalidArgument, launchSteps(launchOf(steps)).code());
  const std::vector<Step> one = {fine};
  StepLaunch launch = launchOf(one, 2);
  launch.arrivals = nullptr;
  EXPECT_EQ(Code::kInvalidArgument, launchSteps(launch).code());
  launch.ctas = 256;
  EXPECT_EQ(Code::kInvalidArgument, launchSteps(launch).code());
  EXPECT_OK(launchSteps(launchOf({})));
  ASSERT_TRUE(ends());
  EXPECT_EQ(1u, get(kCompletion));
}

INSTANTIATE_TEST_SUITE_P(FarSide, StepKernel, testing::Values(0, 1), [](const auto& far) {
  return std::string(far.param == 0 ? "OnOneGpu" : "OnAnother");
});

}  // namespace
}  // namespace peerlane::kernel
