// SPDX-License-Identifier: Apache-2.0
//
// The kernels of messages: LL packets of every small size round their rings, ring slots, puts to
// places that are named; what is checked, what releases, graphs; the far side on the same GPU and
// on another.
#include "peerlane/program/kernel/message/ring_slot_kernel.h"

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "peerlane/program/kernel/message/packet_kernel.h"
#include "peerlane/program/kernel/message/put_kernel.h"
#include "peerlane/program/model/op.h"
#include "tests/core/expect_ok.h"
#include "tests/gpu/kernel_fixture.h"

namespace peerlane::kernel {
namespace {

constexpr uint32_t kInboxStride = 2048, kWordStride = 64, kBytesAt = 8;
constexpr size_t kRingBytes = 16 << 10;  // credits, from its end
constexpr size_t kBufferBytes = 2 << 20;
// Bytes in the device's words.
constexpr size_t kCursorAt = 0, kCursor2At = 64, kArrivalsAt = 128, kPlaceAt = 192, kMirrorAt = 256,
                 kEndedAt = 3968;

class MessageKernel : public MessageKernelFixture {
 protected:
  MessageKernel() : MessageKernelFixture(kBufferBytes) {}
  Status load() override {
    PEERLANE_RETURN_IF_ERROR(loadPacketKernels());
    PEERLANE_RETURN_IF_ERROR(loadRingSlotKernels());
    return loadPutKernels();
  }

  // The ring lies on the far side, its credits on this one, as seen from the sender.
  std::byte* credits() const { return near(kRingBytes); }
  std::byte* source(size_t shift = 0) const { return near((64 << 10) + shift); }
  std::byte* target(size_t shift = 0) const { return far((64 << 10) + shift); }
  uint64_t* word(size_t at) const {
    return reinterpret_cast<uint64_t*>(static_cast<std::byte*>(words_) + at);
  }
  RingWord ring(std::byte* base, uint32_t stride, int32_t delta) const {
    return {.base = base, .strideBytes = stride, .delta = delta};
  }
  PacketLaunch messageOf(uint64_t cursor, std::byte* local, uint32_t bytes, bool isSend) const {
    auto launch = launchOf<PacketLaunch>(cursor);
    launch.isSend = isSend;
    launch.job.packets = ring(far(), kInboxStride, 1);
    launch.job.credits =
        ring(credits(), kWordStride, isSend ? 1 - static_cast<int32_t>(kSlots) : 1);
    launch.job.local = local;
    launch.job.bytes = static_cast<uint16_t>(bytes);
    return launch;
  }
  PacketLaunch sendOf(uint64_t cursor, std::byte* from, uint32_t bytes) const {
    return messageOf(cursor, from, bytes, true);
  }
  PacketLaunch recvOf(uint64_t cursor, std::byte* to, uint32_t bytes) const {
    return messageOf(cursor, to, bytes, false);
  }
  // As the far side puts it there.
  void writePacket(uint64_t cursor, uint64_t packet, uint64_t value, uint64_t tag) const {
    const uint64_t words[] = {value, tag};
    write(far(cursor % kSlots * kInboxStride + packet * kPacketBytes), words, sizeof words);
  }
  uint64_t tagAt(uint64_t cursor, uint64_t packet = 0) const {
    return read(far(cursor % kSlots * kInboxStride + packet * kPacketBytes + 8));
  }
  // --- Puts: `posted` of the ring's first words here, `done` of the far side ---
  static constexpr uint64_t kAllocation = 77, kGeneration = 5, kOffset = 4096;
  void postPlace(uint64_t cursor, uint64_t bytes, uint64_t offset = kOffset) const {
    const uint64_t words[] = {cursor + 1, kAllocation, kGeneration, offset, bytes};
    write(near((cursor % kSlots) * kWordStride), words, sizeof words);
  }
  PutLaunch putOf(uint64_t cursor, std::byte* from, uint64_t bytes) const {
    auto launch = launchOf<PutLaunch>(cursor);
    PutJob& job = launch.job;
    job.from = from;
    job.bytes = bytes;
    job.wait = ring(near(), kWordStride, 1);
    job.tell = ring(far(), kWordStride, 1);
    job.value = bytes;
    job.valueAt = kBytesAt;
    job.allocationAt = 8;
    job.generationAt = 16;
    job.offsetAt = 24;
    job.checkAt = 32;
    job.expected = bytes;
    job.table = {.entries = table(), .slots = kTableSlots};
    job.place = reinterpret_cast<PutPlace*>(word(kPlaceAt));
    job.arrivals = reinterpret_cast<uint32_t*>(word(kArrivalsAt));
    return launch;
  }
  MirroredRegion* mirror() const { return reinterpret_cast<MirroredRegion*>(word(kMirrorAt)); }
};

TEST_P(MessageKernel, EverySizeAtAnyAlignmentGoesRoundTheRing) {
  const auto data = fill(source(), 4096, 1);
  uint64_t cursor = 0;
  for (const uint32_t bytes :
       {0u,   1u,   2u,   4u,   7u,   8u,   9u,   16u,   24u,   64u,   100u,  255u, 256u,
        257u, 511u, 512u, 520u, 777u, 900u, 999u, 1000u, 1016u, 1017u, 1023u, 1024u})
    for (const auto& [fromShift, toShift] :
         {std::pair<size_t, size_t>{0, 0}, {8, 0}, {0, 8}, {4, 12}, {1, 0}, {0, 3}, {5, 14}}) {
      CUDA_OK(cudaMemsetAsync(target(), 0xE7, 4096, stream_));
      const bool overlapsEnd = cursor % 2 == 0;
      PacketLaunch send = sendOf(cursor, source(fromShift), bytes);
      PacketLaunch receive = recvOf(cursor, target(64 + toShift), bytes);
      send.overlapsEnd = receive.overlapsEnd = overlapsEnd;
      ASSERT_OK(launchPackets(send));
      ASSERT_OK(launchPackets(receive));
      ASSERT_TRUE(endsOrIsEnded()) << bytes << " bytes, message " << cursor;
      std::vector<uint8_t> expected(4096, 0xE7);
      std::memcpy(expected.data() + 64 + toShift, data.data() + fromShift, bytes);
      ASSERT_EQ(expected, bytesOf(target(), 4096))
          << bytes << " bytes from +" << fromShift << " to +" << toShift;
      ++cursor;
      ASSERT_EQ(cursor, read(credits() + (cursor - 1) % kSlots * kWordStride));
      ASSERT_EQ(cursor, get(kCompletion));
      ASSERT_EQ(0u, get(kFault));
    }
}

TEST_P(MessageKernel, AFullRingHoldsTheSenderBack) {
  for (uint64_t cursor = 0; cursor < kSlots; ++cursor)
    ASSERT_OK(launchPackets(sendOf(cursor, source(), 8)));
  ASSERT_TRUE(endsOrIsEnded());
  EXPECT_EQ(packetTag(1, 8), tagAt(0));
  startWaiting(sendOf(kSlots, source(), 8), launchPackets);
  EXPECT_EQ(packetTag(1, 8), tagAt(0));
  write(credits(), 1);
  ASSERT_TRUE(endsOrIsEnded());
  EXPECT_EQ(packetTag(kSlots + 1, 8), tagAt(0));
}

// Whichever packet is the last; and none that another message left there is taken for one of this.
TEST_P(MessageKernel, NothingIsTakenOutBeforeAllPacketsAreThere) {
  for (const uint32_t bytes : {8u, 100u, 1024u}) {
    const uint64_t packets = (bytes + 7) / 8;
    for (const uint64_t last : {uint64_t{0}, packets - 1}) {
      CUDA_OK(setNow(target(), 0xE7, 4096));
      CUDA_OK(setNow(credits(), 0, 4096));
      for (uint64_t i = 0; i < packets; ++i) writePacket(kSlots, i, i, packetTag(1, bytes));
      startWaiting(recvOf(kSlots, target(), bytes), launchPackets);
      for (uint64_t i = 0; i < packets; ++i)
        if (i != last) writePacket(kSlots, i, 1000 + i, packetTag(kSlots + 1, bytes));
      EXPECT_FALSE(ends(20));
      EXPECT_EQ(std::vector<uint8_t>(bytes, 0xE7), bytesOf(target(), bytes));
      EXPECT_EQ(0u, read(credits()));
      writePacket(kSlots, last, 1000 + last, packetTag(kSlots + 1, bytes));
      ASSERT_TRUE(endsOrIsEnded());
      std::vector<uint8_t> expected(packets * 8);
      for (uint64_t i = 0; i < packets; ++i) {
        const uint64_t value = 1000 + i;
        std::memcpy(expected.data() + 8 * i, &value, 8);
      }
      expected.resize(bytes);
      EXPECT_EQ(expected, bytesOf(target(), bytes));
      EXPECT_EQ(kSlots + 1, read(credits()));
    }
  }
}

TEST_P(MessageKernel, ReleasedByAbortOrPoisonItDoesNothingButComplete) {
  for (const uint32_t bytes : {64u, 1024u})
    for (const bool sends : {true, false})
      for (const bool byPoison : {false, true}) {
        SCOPED_TRACE(std::to_string(bytes) + " bytes " + (sends ? "sent" : "received") +
                     (byPoison ? ", poison" : ", abort"));
        CUDA_OK(setNow(far(), 0, kRingBytes + 4096));
        CUDA_OK(setNow(credits(), 0, 4096));
        CUDA_OK(setNow(target(), 0xE7, 4096));
        (void)fill(source(), 64, 5);
        PacketLaunch launch = sends ? sendOf(kSlots, source(), bytes) : recvOf(0, target(), bytes);
        launch.job.cursorWord = word(kCursorAt);
        launch.job.cursor -= read(word(kCursorAt));
        launch.job.advance = 3;
        const uint64_t before = read(word(kCursorAt));
        startWaiting(launch, launchPackets);
        if (!byPoison)
          set(kAbort, 1);
        else if (sends)
          write(credits(), kPoison + 3);
        else
          writePacket(0, 0, 0, kPoison + 3);
        ASSERT_TRUE(ends());
        EXPECT_NE(0u, get(kCompletion));
        EXPECT_EQ(kReleasedFault, get(kFault));
        EXPECT_EQ(before + 3, read(word(kCursorAt)));
        if (sends)
          EXPECT_EQ(0u, tagAt(0));
        else
          EXPECT_EQ(0u, read(credits()));
        EXPECT_EQ(std::vector<uint8_t>(1024, 0xE7), bytesOf(target(), 1024));
      }
}

TEST_P(MessageKernel, ALengthThatDiffersIsReportedAndNothingIsTakenOut) {
  (void)fill(source(), 1024, 6);
  CUDA_OK(setNow(target(), 0, 4096));
  uint64_t cursor = 0;
  for (const auto& [sent, received] : {std::pair<uint32_t, uint32_t>{100, 104},
                                       {104, 100},
                                       {0, 8},
                                       {8, 0},
                                       {16, 1000},
                                       {1000, 16},
                                       {1024, 1016}}) {
    set(kFault, 0);
    ASSERT_OK(launchPackets(sendOf(cursor, source(), sent)));
    ASSERT_OK(launchPackets(recvOf(cursor, target(), received)));
    ASSERT_TRUE(endsOrIsEnded()) << sent << ", " << received;
    EXPECT_EQ(99u, get(kFault)) << sent << ", " << received;
    EXPECT_EQ(std::vector<uint8_t>(4096), bytesOf(target(), 4096));
    // The slot is given back.
    EXPECT_EQ(cursor + 1, read(credits() + cursor % kSlots * kWordStride));
    EXPECT_EQ(cursor + 1, get(kCompletion));
    ++cursor;
  }
}

// Else the peer could write packets of its next message among those that are still on their way.
TEST_P(MessageKernel, ASlotOfAnotherLengthIsNotGivenBackBeforeAllOfIt) {
  startWaiting(recvOf(0, target(), 8), launchPackets);
  for (const uint64_t packet : {0, 1}) writePacket(0, packet, 0, packetTag(1, 24));
  EXPECT_FALSE(ends(20));
  EXPECT_EQ(0u, read(credits()));
  writePacket(0, 2, 0, packetTag(1, 24));
  ASSERT_TRUE(endsOrIsEnded());
  EXPECT_EQ(1u, read(credits()));
  EXPECT_EQ(99u, get(kFault));
}

// What says where a message may be put: a wait and words of values.
TEST_P(MessageKernel, ValuesAreThereWhenTheirWordIs) {
  auto launch = launchOf<RingSlotLaunch>(6);
  launch.job.wait = ring(credits(), kWordStride, 1 - static_cast<int32_t>(kSlots));
  launch.job.tell = ring(far(), kWordStride, 1);
  launch.job.tellsWrites = true;
  launch.job.valueCount = 4;
  launch.job.valuesAt = 8;
  for (uint64_t i = 0; i < 4; ++i) launch.job.values[i] = 1000 + i;
  startWaiting(launch, launchRingSlot);
  write(credits() + 2 * kWordStride, 3);
  ASSERT_TRUE(endsOrIsEnded());
  for (uint64_t i = 0; i < 4; ++i) EXPECT_EQ(1000 + i, read(far(2 * kWordStride + 8 + i * 8)));
  EXPECT_EQ(7u, read(far(2 * kWordStride)));
}

TEST_P(MessageKernel, RingSlotsThatAreReleasedOrDifferSaySo) {
  auto launch = launchOf<RingSlotLaunch>(0);
  launch.job.wait = ring(far(), kWordStride, 1);
  launch.job.tell = ring(credits(), kWordStride, 1);
  launch.job.checkAt = kBytesAt;
  launch.job.expected = 100;
  startWaiting(launch, launchRingSlot);
  set(kAbort, 1);
  ASSERT_TRUE(ends());
  EXPECT_EQ(1u, get(kCompletion));
  EXPECT_EQ(kReleasedFault, get(kFault));
  EXPECT_EQ(0u, read(credits()));
  set(kAbort, 0);
  set(kFault, 0);
  for (const auto& [bytes, fault] : {std::pair<uint64_t, uint64_t>{100, 0}, {104, 99}}) {
    const uint64_t words[] = {1, bytes};
    write(far(), words, sizeof words);
    ASSERT_OK(launchRingSlot(launch));
    ASSERT_TRUE(endsOrIsEnded());
    EXPECT_EQ(fault, get(kFault));
    EXPECT_EQ(1u, read(credits()));
  }
}

// A graph of two messages; the payload is the sender's cursor, which every replay changes.
// Each kernel ends it for all, and all that give something to the far side look at it.
TEST_P(MessageKernel, BehindOneThatWasReleasedNothingIsSent) {
  (void)fill(source(), 64, 5);
  auto ringSlot = launchOf<RingSlotLaunch>(0);
  ringSlot.job.wait = ring(near(), kWordStride, 1);
  ringSlot.job.tell = ring(far(), kWordStride, 1);
  ringSlot.job.tellsPeer = true;
  PacketLaunch send = sendOf(0, source(), 64), recv = recvOf(0, target(), 64);
  PutLaunch put = putOf(0, source(), 3000), longPut = putOf(0, source(), kAlonePutBytes + 1);
  for (uint64_t** ended :
       {&ringSlot.job.ended, &send.job.ended, &recv.job.ended, &put.job.ended, &longPut.job.ended})
    *ended = word(kEndedAt);
  PacketLaunch fullSend = send;
  fullSend.job.cursor = kSlots;
  name(namedRegionSlot(kAllocation, kTableSlots), kAllocation, kGeneration, far(32 << 10),
       kOffset + 200000);
  const auto released = [&](const auto& launch, auto start) {
    CUDA_OK(setNow(near(), 0, 4096));
    CUDA_OK(setNow(word(kEndedAt), 0, 8));
    startWaiting(launch, start);
    EXPECT_EQ(0u, read(word(kEndedAt)));
    set(kAbort, 1);
    ASSERT_TRUE(ends());
    EXPECT_EQ(1u, read(word(kEndedAt)));
  };
  released(ringSlot, launchRingSlot);
  released(fullSend, launchPackets);
  released(recv, launchPackets);
  released(put, launchPut);
  released(longPut, launchPut);
  // All that they wait for is there now.
  CUDA_OK(setNow(far(), 0, kRingBytes));
  postPlace(0, 3000);
  const auto leftOut = [&](const auto& launch, auto start, const void* told) {
    set(kAbort, 0);
    set(kFault, 0);
    set(kCompletion, 0);
    ASSERT_OK(start(launch));
    ASSERT_TRUE(endsOrIsEnded());
    EXPECT_EQ(1u, get(kCompletion));
    EXPECT_EQ(kReleasedFault, get(kFault));
    EXPECT_EQ(0u, read(told));
  };
  leftOut(ringSlot, launchRingSlot, far());
  leftOut(send, launchPackets, far(8));
  leftOut(put, launchPut, far());
  postPlace(0, kAlonePutBytes + 1);
  leftOut(longPut, launchPut, far());
  // A ring slot that tells only this side has been met, and says so.
  ringSlot.job.tell = ring(near(512), kWordStride, 1);
  ringSlot.job.tellsPeer = false;
  set(kFault, 0);
  ASSERT_OK(launchRingSlot(ringSlot));
  ASSERT_TRUE(endsOrIsEnded());
  EXPECT_EQ(0u, get(kFault));
  EXPECT_EQ(1u, read(near(512)));
  // What has been sent is taken out all the same.
  const uint64_t packet[] = {7, packetTag(1, 8)};
  write(far(), packet, sizeof packet);
  recv.job.bytes = 8;
  set(kFault, 0);
  ASSERT_OK(launchPackets(recv));
  ASSERT_TRUE(endsOrIsEnded());
  EXPECT_EQ(0u, get(kFault));
  EXPECT_EQ(7u, read(target()));
}

TEST_P(MessageKernel, ReplayedByAGraphItFollowsItsCursor) {
  constexpr uint64_t kReplays = 500;
  for (const bool overlapsEnd : {false, true}) {
    CUDA_OK(setNow(far(), 0, kRingBytes + 4096));
    CUDA_OK(setNow(credits(), 0, 4096));
    CUDA_OK(setNow(words_, 0, 4096));
    CUDA_OK(cudaDeviceSynchronize());
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    CUDA_OK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    for (const uint64_t message : {0, 1})
      for (const bool sends : {true, false}) {
        PacketLaunch launch =
            sends ? sendOf(message, reinterpret_cast<std::byte*>(word(kCursorAt)), 8)
                  : recvOf(message, target(8 * message), 8);
        launch.job.cursorWord = word(sends ? kCursorAt : kCursor2At);
        launch.job.advance = message == 1 ? 2 : 0;
        launch.job.completion = nullptr;
        launch.overlapsEnd = overlapsEnd;
        ASSERT_OK(launchPackets(launch));
      }
    CUDA_OK(cudaStreamEndCapture(stream_, &graph));
    CUDA_OK(cudaGraphInstantiate(&executable, graph, 0));
    for (uint64_t i = 0; i < kReplays; ++i) {
      CUDA_OK(cudaGraphLaunch(executable, stream_));
      if (i % 100 != 99) continue;
      ASSERT_TRUE(endsOrIsEnded());
      ASSERT_EQ(2 * i, read(target()));
      ASSERT_EQ(2 * i, read(target(8)));
    }
    EXPECT_EQ(2 * kReplays, read(word(kCursorAt)));
    EXPECT_EQ(2 * kReplays, read(word(kCursor2At)));
    EXPECT_EQ(0u, get(kFault));
    CUDA_OK(cudaGraphExecDestroy(executable));
    CUDA_OK(cudaGraphDestroy(graph));
  }
}

TEST_P(MessageKernel, WhatCannotRunIsRefused) {
  const auto refused = [](const PacketLaunch& launch) { return launchPackets(launch).code(); };
  PacketLaunch launch = sendOf(0, source(), 8);
  launch.job.slots = 3;
  EXPECT_EQ(Code::kInvalidArgument, refused(launch));
  launch = sendOf(0, nullptr, 8);
  EXPECT_EQ(Code::kInvalidArgument, refused(launch));
  launch = sendOf(0, source(), kMostPacketMessageBytes + 1);
  EXPECT_EQ(Code::kInvalidArgument, refused(launch));
  launch = sendOf(0, source(), 8);
  launch.job.advance = 1;
  EXPECT_EQ(Code::kInvalidArgument, refused(launch));
  launch = sendOf(0, source(), 8);
  launch.job.packets.base += 8;
  EXPECT_EQ(Code::kInvalidArgument, refused(launch));
  launch = sendOf(0, source(), 100);
  launch.job.packets.strideBytes = 192;
  EXPECT_EQ(Code::kInvalidArgument, refused(launch));
  auto ringSlot = launchOf<RingSlotLaunch>(0);
  EXPECT_EQ(Code::kInvalidArgument, launchRingSlot(ringSlot).code()) << "nothing to wait for";
  PutLaunch put = putOf(0, source(), kAlonePutBytes + 1);
  put.job.place = nullptr;
  EXPECT_EQ(Code::kInvalidArgument, launchPut(put).code());
}

constexpr uint64_t kPutSizes[] = {1,      2049, 65536, 70001, kAlonePutBytes, kAlonePutBytes + 1,
                                  1000001};

TEST_P(MessageKernel, PutsGoWhereTheSlotSays) {
  name(namedRegionSlot(kAllocation, kTableSlots), kAllocation, kGeneration, far(32 << 10),
       kOffset + (1 << 20));
  uint64_t cursor = 0;
  for (const uint64_t bytes : kPutSizes)
    for (const size_t shift : {size_t{0}, size_t{5}})
      for (const uint32_t ctas : {0u, 7u}) {
        std::byte* const place = far((32 << 10) + kOffset);
        CUDA_OK(setNow(place, 0xE7, bytes + 64));
        CUDA_OK(cudaDeviceSynchronize());
        const auto data = fill(source(shift), bytes, static_cast<uint32_t>(cursor + 7));
        PutLaunch launch = putOf(cursor, source(shift), bytes);
        launch.ctas = ctas;
        launch.overlapsEnd = ctas == 0;
        startWaiting(launch, launchPut);
        postPlace(cursor, bytes);
        ASSERT_TRUE(endsOrIsEnded()) << bytes;
        ASSERT_EQ(data, bytesOf(place, bytes)) << bytes;
        ASSERT_EQ(std::vector<uint8_t>(64, 0xE7), bytesOf(place + bytes, 64));
        ASSERT_EQ(cursor + 1, read(far(cursor % kSlots * kWordStride)));
        ASSERT_EQ(bytes, read(far(cursor % kSlots * kWordStride + kBytesAt)));
        ASSERT_EQ(cursor + 1, get(kCompletion));
        ASSERT_EQ(0u, get(kFault));
        ASSERT_EQ(0u, read(word(kArrivalsAt)));
        ++cursor;
      }
}

TEST_P(MessageKernel, PutsWaitForARegionThatComes) {
  const uint32_t first = namedRegionSlot(kAllocation, kTableSlots);
  name(first + 1, kAllocation, kGeneration - 1, near(), kBufferBytes);  // an older generation
  for (const uint64_t bytes : {uint64_t{3000}, kAlonePutBytes + 1}) {
    name(first + 2, 0, 0, nullptr, 0);
    const auto data = fill(source(), bytes, 8);
    postPlace(0, bytes);
    startWaiting(putOf(0, source(), bytes), launchPut);
    name(first + 2, kAllocation, kGeneration, far(32 << 10), kOffset + bytes);
    ASSERT_TRUE(endsOrIsEnded());
    EXPECT_EQ(data, bytesOf(far((32 << 10) + kOffset), bytes));
  }
}

// What was found stays at hand, until the version of the table is another.
TEST_P(MessageKernel, PutsLookARegionUpOnce) {
  const uint32_t slot = namedRegionSlot(kAllocation, kTableSlots);
  for (const uint64_t bytes : {uint64_t{3000}, kAlonePutBytes + 1}) {
    CUDA_OK(setNow(mirror(), 0, kTableSlots * sizeof(MirroredRegion)));
    CUDA_OK(cudaDeviceSynchronize());
    name(slot, kAllocation, kGeneration, far(32 << 10), kOffset + bytes);
    PutLaunch launch = putOf(0, source(), bytes);
    launch.job.table.mirror = mirror();
    launch.job.table.version = 7;
    postPlace(0, bytes);
    ASSERT_OK(launchPut(launch));
    ASSERT_TRUE(endsOrIsEnded());
    name(slot, 0, 0, nullptr, 0);
    const auto data = fill(source(), bytes, 9);
    ASSERT_OK(launchPut(launch));
    ASSERT_TRUE(endsOrIsEnded()) << "it asks the host again";
    EXPECT_EQ(data, bytesOf(far((32 << 10) + kOffset), bytes));
    launch.job.table.version = 8;
    startWaiting(launch, launchPut);
    name(slot, kAllocation, kGeneration, far(36 << 10), kOffset + bytes);
    ASSERT_TRUE(endsOrIsEnded());
    EXPECT_EQ(data, bytesOf(far((36 << 10) + kOffset), bytes));
  }
}

TEST_P(MessageKernel, PutsThatAreReleasedTellNothing) {
  for (const uint64_t bytes : {uint64_t{3000}, kAlonePutBytes + 1})
    for (const bool namesRegion : {false, true}) {
      CUDA_OK(setNow(near(), 0, 4096));
      CUDA_OK(cudaDeviceSynchronize());
      if (namesRegion) postPlace(0, bytes);  // one that never comes
      startWaiting(putOf(0, source(), bytes), launchPut);
      set(kAbort, 1);
      ASSERT_TRUE(ends());
      EXPECT_EQ(1u, get(kCompletion));
      EXPECT_EQ(kReleasedFault, get(kFault));
      EXPECT_EQ(0u, read(far()));
      EXPECT_EQ(0u, read(word(kArrivalsAt)));
    }
}

TEST_P(MessageKernel, PutsThatDoNotFitAreReportedAndTold) {
  const uint64_t room = 200000;
  name(namedRegionSlot(kAllocation, kTableSlots), kAllocation, kGeneration, far(32 << 10), room);
  (void)fill(source(), room, 10);
  uint64_t cursor = 0;
  for (const uint64_t bytes : {uint64_t{3000}, kAlonePutBytes + 1})
    for (const auto& [offset, posted] : {std::pair<uint64_t, uint64_t>{room - bytes + 1, bytes},
                                         {room + 1, bytes},
                                         {~uint64_t{0} - 500, bytes},
                                         {0, bytes + 1}}) {
      CUDA_OK(setNow(far(32 << 10), 0, room + 4096));
      CUDA_OK(cudaDeviceSynchronize());
      set(kFault, 0);
      set(kCompletion, 0);
      postPlace(cursor, posted, offset);
      ASSERT_OK(launchPut(putOf(cursor, source(), bytes)));
      ASSERT_TRUE(endsOrIsEnded());
      EXPECT_EQ(99u, get(kFault)) << offset;
      EXPECT_EQ(cursor + 1, get(kCompletion));
      EXPECT_EQ(cursor + 1, read(far(cursor % kSlots * kWordStride)));
      EXPECT_EQ(std::vector<uint8_t>(room + 4096), bytesOf(far(32 << 10), room + 4096));
      ++cursor;
    }
}

INSTANTIATE_TEST_SUITE_P(FarSide, MessageKernel, testing::Values(0, 1), [](const auto& far) {
  return std::string(far.param == 0 ? "OnOneGpu" : "OnAnother");
});

}  // namespace
}  // namespace peerlane::kernel
