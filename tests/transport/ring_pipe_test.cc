// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/shm/ring_pipe.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

#include "peerlane/os/fd.h"
#include "tests/fake/patterned_bytes.h"
#include "tests/transport/sleeper.h"

namespace peerlane {
namespace {

constexpr size_t kCapacity = 4096;
constexpr size_t kArea = RingPipe::bytesFor(kCapacity);

class RingPipeTest : public testing::Test {
 protected:
  struct alignas(64) Area {
    std::byte bytes[kArea] = {};
    RingWords& words() { return *reinterpret_cast<RingWords*>(bytes); }
  };

  static Result<size_t> write(RingPipe& pipe, std::span<std::byte> bytes) {
    const IoSlice slice{bytes.data(), bytes.size()};
    return pipe.write({std::span(&slice, 1)});
  }
  static Result<size_t> read(RingPipe& pipe, std::span<std::byte> bytes) {
    const IoSlice slice{bytes.data(), bytes.size()};
    return pipe.read({std::span(&slice, 1)});
  }

  std::unique_ptr<Area> up_ = std::make_unique<Area>();
  std::unique_ptr<Area> down_ = std::make_unique<Area>();
  Sleeper sleepers_[2];
  std::unique_ptr<RingPipe> a_ =
      RingPipe::create(up_->bytes, down_->bytes, sleepers_[1].waker()).value();
  std::unique_ptr<RingPipe> b_ =
      RingPipe::create(down_->bytes, up_->bytes, sleepers_[0].waker()).value();
};

TEST_F(RingPipeTest, CreateRefusesWhatIsNoRing) {
  std::span<std::byte> good(up_->bytes);
  for (const std::span<std::byte> bad :
       {good.first(100), good.first(kArea - 1), good.first(RingPipe::bytesFor(2048)),
        good.subspan(8), std::span<std::byte>()}) {
    EXPECT_EQ(RingPipe::create(bad, down_->bytes, Waker()).status().code(), Code::kInvalidArgument);
    EXPECT_EQ(RingPipe::create(down_->bytes, bad, Waker()).status().code(), Code::kInvalidArgument);
  }
}

// docs/wire.md, "The ring of shm", written out by hand.
TEST_F(RingPipeTest, GoldenBytes) {
  const auto bytesAt = [](const Area& area, size_t at, size_t count) {
    std::vector<int> bytes;
    for (size_t i = 0; i < count; ++i) bytes.push_back(std::to_integer<int>(area.bytes[at + i]));
    return bytes;
  };
  using Bytes = std::vector<int>;
  std::vector<std::byte> out(0x0102);
  fillPattern(out, 1);
  ASSERT_EQ(write(*a_, out).value(), out.size());
  EXPECT_EQ(bytesAt(*up_, 0, 8), (Bytes{0x02, 0x01, 0, 0, 0, 0, 0, 0})) << "head";
  EXPECT_EQ(std::memcmp(&up_->bytes[128], out.data(), out.size()), 0);
  ASSERT_EQ(read(*b_, std::span(out).first(3)).value(), 3u);
  EXPECT_EQ(bytesAt(*up_, 64, 8), (Bytes{3, 0, 0, 0, 0, 0, 0, 0})) << "tail";
  EXPECT_EQ(bytesAt(*up_, 8, 8), (Bytes{0, 0, 0, 0, 0, 0, 0, 0})) << "neither starved nor ended";
  std::vector<std::byte> more(kCapacity);
  (void)write(*a_, more);
  EXPECT_FALSE(a_->writable());
  EXPECT_EQ(bytesAt(*up_, 8, 4), (Bytes{1, 0, 0, 0})) << "starved";
  a_->close();
  EXPECT_EQ(bytesAt(*up_, 12, 4), (Bytes{1, 0, 0, 0})) << "ended";
  EXPECT_EQ(bytesAt(*down_, 72, 4), (Bytes{1, 0, 0, 0})) << "left";

  // And the other way round: what another implementation writes is read.
  Area area[2];
  auto reader = RingPipe::create(area[0].bytes, area[1].bytes, Waker()).value();
  area[1].bytes[128] = std::byte{0x5a};
  area[1].bytes[0] = std::byte{1};
  ASSERT_EQ(read(*reader, std::span(out).first(9)).value(), 1u);
  EXPECT_EQ(out[0], std::byte{0x5a});
  area[1].bytes[12] = std::byte{1};
  EXPECT_EQ(read(*reader, out).status().code(), Code::kPeerLost);
  area[0].bytes[72] = std::byte{1};
  EXPECT_EQ(write(*reader, out).status().code(), Code::kPeerLost);
}

TEST_F(RingPipeTest, BytesWrapAround) {
  std::vector<std::byte> out(3000);
  std::vector<std::byte> in(3000);
  for (uint64_t round = 0; round < 50; ++round) {
    fillPattern(out, round);
    ASSERT_EQ(write(*a_, out).value(), out.size());
    ASSERT_EQ(read(*b_, std::span(in).first(1)).value(), 1u);
    ASSERT_EQ(read(*b_, std::span(in).subspan(1)).value(), out.size() - 1);
    ASSERT_EQ(firstWrong(in, round), in.size());
  }
  EXPECT_EQ(read(*b_, in).value(), 0u);
}

TEST_F(RingPipeTest, AFullRingTakesNoByteAndTheReaderRings) {
  std::vector<std::byte> out(kCapacity + 100);
  EXPECT_EQ(write(*a_, out).value(), kCapacity);
  EXPECT_TRUE(sleepers_[1].rung());
  EXPECT_FALSE(a_->writable());
  EXPECT_EQ(write(*a_, out).value(), 0u);
  EXPECT_EQ(read(*b_, std::span(out).first(10)).value(), 10u);
  EXPECT_TRUE(sleepers_[0].rung());  // the writer said that it starves
  EXPECT_TRUE(a_->writable());
  EXPECT_EQ(write(*a_, out).value(), 10u);
}

TEST_F(RingPipeTest, NobodyIsRungWithoutNeed) {
  std::vector<std::byte> bytes(100);
  sleepers_[1].word.fetch_add(bell_word::kPoller);  // awake
  EXPECT_EQ(write(*a_, bytes).value(), 100u);
  EXPECT_FALSE(sleepers_[1].rung());
  sleepers_[1].word.fetch_add(bell_word::kLeave);
  EXPECT_EQ(write(*a_, bytes).value(), 100u);
  EXPECT_TRUE(sleepers_[1].rung());
  EXPECT_EQ(read(*b_, bytes).value(), 100u);
  EXPECT_FALSE(sleepers_[0].rung());  // the writer had room
}

TEST_F(RingPipeTest, TheEndComesAfterTheBytes) {
  std::vector<std::byte> bytes(100);
  EXPECT_EQ(write(*a_, bytes).value(), 100u);
  a_->close();
  EXPECT_TRUE(sleepers_[1].rung());
  EXPECT_TRUE(b_->readable());
  EXPECT_EQ(read(*b_, std::span(bytes).first(60)).value(), 60u);
  EXPECT_EQ(read(*b_, bytes).value(), 40u);
  EXPECT_TRUE(b_->readable());
  EXPECT_EQ(read(*b_, bytes).status().code(), Code::kPeerLost);
  EXPECT_EQ(write(*b_, bytes).status().code(), Code::kPeerLost);
}

// Whatever a peer stores in its words, nothing outside the ring is touched (the address sanitizer
// watches) and the stream ends with a clear error.
TEST_F(RingPipeTest, AHostileHeadEndsTheStream) {
  std::vector<std::byte> bytes(kCapacity * 4);
  EXPECT_EQ(write(*a_, std::span(bytes).first(1000)).value(), 1000u);
  EXPECT_EQ(read(*b_, std::span(bytes).first(500)).value(), 500u);
  for (const uint64_t head : {uint64_t{0}, uint64_t{499}, uint64_t{999}, 501 + uint64_t{kCapacity},
                              uint64_t{1} << 63, ~uint64_t{0}}) {
    up_->words().head = head;
    EXPECT_EQ(read(*b_, bytes).status().code(), Code::kCorrupt) << head;
  }
  up_->words().head = 500 + kCapacity;  // within the ring: garbage, but bounded
  EXPECT_EQ(read(*b_, bytes).value(), kCapacity);
}

TEST_F(RingPipeTest, AHostileTailEndsTheStream) {
  std::vector<std::byte> bytes(kCapacity * 4);
  EXPECT_EQ(write(*a_, std::span(bytes).first(1000)).value(), 1000u);
  EXPECT_EQ(read(*b_, std::span(bytes).first(500)).value(), 500u);
  EXPECT_EQ(write(*a_, std::span(bytes).first(1)).value(), 1u);
  for (const uint64_t tail :
       {uint64_t{0}, uint64_t{499}, uint64_t{1002}, uint64_t{1} << 63, ~uint64_t{0}}) {
    up_->words().tail = tail;
    EXPECT_EQ(write(*a_, bytes).status().code(), Code::kCorrupt) << tail;
  }
  up_->words().tail = 1001;
  EXPECT_EQ(write(*a_, bytes).value(), kCapacity);
}

// Our own words in shared memory are copies: a peer that changes them changes nothing here.
TEST_F(RingPipeTest, OwnPositionsAreNotReadBack) {
  std::vector<std::byte> bytes(100);
  fillPattern(bytes, 1);
  EXPECT_EQ(write(*a_, bytes).value(), 100u);
  up_->words().head = 12345;
  EXPECT_EQ(write(*a_, bytes).value(), 100u);
  EXPECT_EQ(up_->words().head.load(), 200u);
  up_->words().tail = 77;
  std::vector<std::byte> in(200);
  EXPECT_EQ(read(*b_, in).value(), 200u);
  EXPECT_EQ(up_->words().tail.load(), 200u);
  EXPECT_EQ(firstWrong(std::span(in).subspan(100), 1), 100u);
}

TEST_F(RingPipeTest, AStreamBetweenThreadsArrivesWhole) {
  constexpr size_t kBytes = 3'000'000;
  std::vector<std::byte> out(kBytes);
  std::vector<std::byte> in(kBytes);
  fillPattern(out, 9);
  std::thread writer([&] {
    for (size_t at = 0; at < kBytes;) {
      const size_t part = std::min<size_t>(1 + at % 5003, kBytes - at);
      at += write(*a_, std::span(out).subspan(at, part)).value();
      if (!a_->writable()) std::this_thread::yield();
    }
  });
  for (size_t at = 0; at < kBytes;) {
    const size_t part = std::min<size_t>(1 + at % 3001, kBytes - at);
    const size_t bytes = read(*b_, std::span(in).subspan(at, part)).value();
    at += bytes;
    if (bytes == 0) std::this_thread::yield();
  }
  writer.join();
  EXPECT_EQ(firstWrong(in, 9), kBytes);
}

// Both sleep in poll() whenever the wake rule allows it: a lost ring would hang.
TEST_F(RingPipeTest, SleepersAreAlwaysWoken) {
  constexpr size_t kBytes = 400'000;
  std::vector<std::byte> out(kBytes);
  fillPattern(out, 3);
  std::thread writer([&] {
    for (size_t at = 0; at < kBytes;) {
      const size_t bytes = write(*a_, std::span(out).subspan(at)).value();
      at += bytes;
      if (bytes == 0) sleepers_[0].sleep();
    }
  });
  std::vector<std::byte> in(kBytes);
  for (size_t at = 0; at < kBytes;) {
    const size_t bytes = read(*b_, std::span(in).subspan(at)).value();
    at += bytes;
    if (bytes == 0) sleepers_[1].sleep();
  }
  writer.join();
  EXPECT_EQ(firstWrong(in, 3), kBytes);
}

}  // namespace
}  // namespace peerlane
