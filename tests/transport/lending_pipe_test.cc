// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/shm/lending_pipe.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "peerlane/os/mappings/nofault_copy.h"
#include "peerlane/os/socket.h"
#include "tests/core/expect_ok.h"
#include "tests/fake/patterned_bytes.h"
#include "tests/os/few_descriptors.h"
#include "tests/os/file_memory.h"
#include "tests/os/refused_calls.h"
#include "tests/transport/sleeper.h"

namespace peerlane {
namespace {

using Bytes = std::vector<std::byte>;

constexpr size_t kCapacity = 8192;
constexpr size_t kArea = RingPipe::bytesFor(kCapacity);

struct alignas(64) Area {
  std::byte bytes[kArea] = {};
  RingWords& words() { return *reinterpret_cast<RingWords*>(bytes); }
};

Bytes pattern(size_t bytes, uint64_t seed) {
  Bytes made(bytes);
  fillPattern(made, seed);
  return made;
}

// Memory of the program, if not told otherwise.
Result<size_t> write(FramePipe& pipe, std::span<std::byte> bytes, bool areOurs = false) {
  const IoSlice slice{bytes.data(), bytes.size()};
  return pipe.write({{&slice, 1}, {}, areOurs});
}
Result<size_t> read(FramePipe& pipe, std::span<std::byte> bytes, bool areOurs = false) {
  const IoSlice slice{bytes.data(), bytes.size()};
  return pipe.read({{&slice, 1}, {}, areOurs});
}

// Until nothing fits, or until the end of `bytes`.
size_t writeAll(FramePipe& pipe, std::span<std::byte> bytes, bool areOurs = false) {
  for (size_t at = 0;;) {
    const size_t part = at == bytes.size() ? 0 : MUST(write(pipe, bytes.subspan(at), areOurs));
    if (part == 0) return at;
    at += part;
  }
}

struct Came {
  Bytes bytes;
  Code code = Code::kOk;  // what came after them; kOk: nothing
};

// All that comes now, at most `most` bytes.
Came readAll(FramePipe& pipe, size_t most = size_t{1} << 30) {
  Came came;
  for (Bytes piece(30'000); most != 0;) {
    const Result<size_t> bytes = read(pipe, std::span(piece).first(std::min(piece.size(), most)));
    if (!bytes || *bytes == 0) {
      came.code = bytes.status().code();
      break;
    }
    const auto end = piece.begin() + static_cast<ptrdiff_t>(*bytes);
    came.bytes.insert(came.bytes.end(), piece.begin(), end);
    most -= *bytes;
  }
  return came;
}

// Two pipes that are joined.
struct Joined {
  Joined() {
    auto sockets = MUST(socketPair());
    for (int side : {0, 1}) {
      sockets_[side] = std::move(side == 0 ? sockets.first : sockets.second);
      lines_[side] = std::make_unique<KnockLine>(sockets_[side].get());
      pipes_[side] = std::make_unique<LendingPipe>(
          MUST(RingPipe::create(areas_[side]->bytes, areas_[1 - side]->bytes,
                                sleepers_[1 - side].waker())),
          *lines_[side]);
    }
  }

  std::unique_ptr<Area> areas_[2] = {std::make_unique<Area>(), std::make_unique<Area>()};
  Sleeper sleepers_[2];
  Fd sockets_[2];
  std::unique_ptr<KnockLine> lines_[2];
  std::unique_ptr<LendingPipe> pipes_[2];
};

class LendingPipeTest : public testing::Test, protected Joined {
 protected:
  static void SetUpTestSuite() { ASSERT_OK(prepareNofault()); }
  LendingPipe& a_ = *pipes_[0];
  LendingPipe& b_ = *pipes_[1];
};

// --- The format, written out by hand ---

// One pipe, and the other side as another implementation would be.
class ByHand : public LendingPipeTest {
 protected:
  using Values = std::vector<int>;

  // The ring's first bytes that a_ has written.
  Values written(size_t count) const {
    Values bytes;
    for (size_t i = 0; i < count; ++i)
      bytes.push_back(std::to_integer<int>(areas_[0]->bytes[128 + i]));
    return bytes;
  }
  uint64_t head() const { return areas_[0]->words().head; }
  void setTail(uint64_t tail) { areas_[0]->words().tail = tail; }

  // Says to b_ that these have come. The record's head, then bytes.
  void record(uint32_t direct, uint32_t paged, std::span<const std::byte> bytes) {
    for (const uint32_t value : {direct, paged})
      for (int i = 0; i < 4; ++i) add(static_cast<std::byte>(value >> (8 * i)));
    for (const std::byte each : bytes) add(each);
  }
  void add(std::byte each) { areas_[0]->bytes[128 + end_++ % kCapacity] = each; }
  void tell() { areas_[0]->words().head = end_; }
  uint64_t tail() const { return areas_[0]->words().tail; }

  void givePipe() {
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    out_ = Fd(ends[0]);
    in_ = Fd(ends[1]);
    ASSERT_OK(lines_[0]->give(out_));
  }
  void putIn(std::span<const std::byte> bytes) {
    ASSERT_EQ(::write(in_.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  }
  int bytesInPipe() const {
    int bytes = 0;
    EXPECT_EQ(::ioctl(out_.get(), FIONREAD, &bytes), 0);
    return bytes;
  }

  uint64_t end_ = 0;
  Fd out_;
  Fd in_;
};

TEST_F(ByHand, RecordsThatAreWritten) {
  Bytes library = pattern(3, 1);
  Bytes program = pattern(5000, 2);
  const std::vector<IoSlice> slices{{library.data(), 3}, {program.data(), 5000}};
  ASSERT_EQ(MUST(a_.write({slices, library})), 5003u);
  EXPECT_EQ(head(), 12u);
  const auto value = [&](size_t i) { return std::to_integer<int>(library[i]); };
  EXPECT_EQ(written(12), (Values{3, 0, 0, 0, 0x88, 0x13, 0, 0, value(0), value(1), value(2), 0}));
  EXPECT_TRUE(sleepers_[1].rung());
  // The pages are in the pipe that came over the line.
  const Fd pipe = MUST(lines_[1]->take());
  ASSERT_TRUE(pipe);
  Bytes in(6000);
  ASSERT_EQ(::read(pipe.get(), in.data(), in.size()), 5000);
  EXPECT_EQ(firstWrong(std::span(in).first(5000), 2), 5000u);

  EXPECT_EQ(a_.lent(), 5000u);
  EXPECT_EQ(a_.returned(), 0u);
  setTail(11);
  EXPECT_EQ(a_.returned(), 0u) << "the mark is still there";
  setTail(12);
  EXPECT_EQ(a_.returned(), 5000u);

  // Of the library alone: no mark, and no other pipe.
  ASSERT_EQ(MUST(write(a_, library, /*areOurs=*/true)), 3u);
  EXPECT_EQ(head(), 23u);
  Values all = written(23);
  EXPECT_EQ(Values(all.begin() + 12, all.end()),
            (Values{3, 0, 0, 0, 0, 0, 0, 0, value(0), value(1), value(2)}));
  // Of the program alone.
  ASSERT_EQ(MUST(write(a_, std::span(program).first(0x102))), 0x102u);
  EXPECT_EQ(head(), 32u);
  all = written(32);
  EXPECT_EQ(Values(all.begin() + 23, all.end()), (Values{0, 0, 0, 0, 2, 1, 0, 0, 0}));
  ASSERT_EQ(::read(pipe.get(), in.data(), in.size()), 0x102);
  EXPECT_FALSE(MUST(lines_[1]->take()));
  setTail(32);
  EXPECT_EQ(a_.returned(), 5258u);
}

TEST_F(ByHand, RecordsThatAreRead) {
  const Bytes stream = pattern(9000, 3);
  const std::span<const std::byte> all(stream);
  givePipe();
  putIn(all.subspan(5, 4000));
  record(5, 4000, all.first(5));
  add(std::byte{0});
  record(300, 0, all.subspan(4005, 300));
  tell();
  EXPECT_TRUE(b_.readable());
  Bytes in(9000);
  // The mark stays in the ring until the last byte has left the pipe.
  ASSERT_EQ(MUST(read(b_, std::span(in).first(4))), 4u);
  ASSERT_EQ(MUST(read(b_, std::span(in).subspan(4, 1))), 1u);
  size_t at = 5;
  while (at < 4004) at += MUST(read(b_, std::span(in).subspan(at, 4004 - at)));
  EXPECT_EQ(bytesInPipe(), 1);
  EXPECT_LE(tail(), 13u);
  EXPECT_TRUE(b_.readable());
  ASSERT_EQ(MUST(read(b_, std::span(in).subspan(at, 1))), 1u);
  EXPECT_GE(tail(), 14u);
  for (++at; at < 4305;) at += MUST(read(b_, std::span(in).subspan(at)));
  EXPECT_EQ(tail(), 14u + 308);
  EXPECT_EQ(MUST(read(b_, in)), 0u);

  // Two that wait in one pipe; the first has no bytes of its own.
  putIn(all.subspan(4305, 2000));
  record(0, 1, {});
  add(std::byte{0});
  record(1000, 1999, all.subspan(6305, 0));
  for (size_t i = 0; i < 1000; ++i) add(stream[8000 + i]);
  add(std::byte{0});
  tell();
  const Came came = readAll(b_);
  EXPECT_EQ(came.code, Code::kOk);
  ASSERT_EQ(came.bytes.size(), 3000u);
  EXPECT_EQ(came.bytes[0], stream[4305]);
  EXPECT_EQ(std::memcmp(&came.bytes[1], &stream[8000], 1000), 0);
  EXPECT_EQ(std::memcmp(&came.bytes[1001], &stream[4306], 1999), 0);
  EXPECT_EQ(tail(), end_);
  EXPECT_EQ(std::memcmp(in.data(), stream.data(), 4305), 0);
  EXPECT_FALSE(b_.readable());
}

// More in a record than this implementation puts into one.
TEST_F(ByHand, ALongRecordIsRead) {
  givePipe();
  constexpr uint32_t kBytes = 200'000;
  if (::fcntl(in_.get(), F_SETPIPE_SZ, 256 * 1024) < 0) GTEST_SKIP() << "the user's pipes are full";
  const Bytes stream = pattern(kBytes, 3);
  putIn(stream);
  record(0, kBytes, {});
  add(std::byte{0});
  tell();
  EXPECT_EQ(readAll(b_).bytes, stream);
  EXPECT_EQ(tail(), 9u);
}

// --- Records of a hostile peer ---

struct Hostile {
  const char* name;
  uint32_t direct = 0;
  uint32_t paged = 0;
  size_t inRing = 0;  // bytes after the head
  size_t inPipe = 0;  // bytes; none: no pipe is given
  size_t headBytes = 8;
  size_t arrive = 0;  // at most, before the failure is seen
};

class HostileRecord : public ByHand, public testing::WithParamInterface<Hostile> {};

TEST_P(HostileRecord, EndsTheStream) {
  const Hostile& bad = GetParam();
  if (bad.inPipe != 0) {
    givePipe();
    putIn(pattern(bad.inPipe, 1));
  }
  record(bad.direct, bad.paged, pattern(bad.inRing, 1));
  end_ -= 8 - bad.headBytes;
  tell();
  EXPECT_TRUE(b_.readable());
  const Came came = readAll(b_);
  EXPECT_LE(came.bytes.size(), bad.arrive);
  EXPECT_EQ(came.code, Code::kCorrupt);
  Bytes room(100);
  EXPECT_EQ(read(b_, room).status().code(), Code::kCorrupt) << "it stays so";
  // Also when what was missing comes after all.
  if (bad.inPipe == 0) givePipe();
  putIn(pattern(5000, 1));
  for (int i = 0; i < 4000; ++i) add(std::byte{0});
  tell();
  EXPECT_EQ(read(b_, room).status().code(), Code::kCorrupt) << "it stays so";
  EXPECT_EQ(read(b_, room, /*areOurs=*/true).status().code(), Code::kCorrupt);
}

INSTANTIATE_TEST_SUITE_P(
    LendingPipe, HostileRecord,
    testing::Values(
        Hostile{.name = "OfNothing"}, Hostile{.name = "OfNothingWithBytes", .inRing = 100},
        Hostile{.name = "MoreThanHasCome", .direct = 101, .inRing = 100},
        Hostile{.name = "MoreThanTheRing", .direct = 0xffffffff, .inRing = 100},
        Hostile{.name = "AllButTheMark", .direct = 100, .paged = 7, .inRing = 100, .inPipe = 7},
        Hostile{.name = "OnlyAHead", .paged = 7, .inPipe = 7},
        Hostile{.name = "NoPipe", .paged = 7, .inRing = 1},
        Hostile{.name = "NoPipeAfterBytes", .direct = 5, .paged = 7, .inRing = 6},
        Hostile{.name = "MoreThanThePipe", .paged = 7, .inRing = 1, .inPipe = 6, .arrive = 6},
        Hostile{.name = "AllThatThereMayBe",
                .direct = 9,
                .paged = 0xffffffff,
                .inRing = 10,
                .inPipe = 100,
                .arrive = 109},
        Hostile{.name = "OneByteOfAHead", .direct = 1, .headBytes = 1},
        Hostile{.name = "HalfAHead", .direct = 1, .headBytes = 4},
        Hostile{.name = "SevenBytesOfAHead", .direct = 1, .headBytes = 7}),
    [](const auto& each) { return std::string(each.param.name); });

TEST_F(ByHand, WhatIsNoPipeEndsTheStream) {
  const Fd event = MUST(makeEventFd());
  ASSERT_OK(lines_[0]->give(event));
  record(0, 7, {});
  add(std::byte{0});
  tell();
  EXPECT_EQ(readAll(b_).code, Code::kCorrupt);
  givePipe();
  putIn(pattern(7, 1));
  EXPECT_EQ(readAll(b_).code, Code::kCorrupt);
}

// The peer may change the flags of the end that it has been given. A failure of this test is that
// it does not end.
TEST_F(ByHand, ThePeerCannotMakeTheEndBlock) {
  Bytes program = pattern(5000, 1);
  ASSERT_EQ(MUST(write(a_, program)), program.size());
  const Fd pipe = MUST(lines_[1]->take());
  ASSERT_EQ(::fcntl(pipe.get(), F_SETFL, 0), 0);
  a_.close();
  EXPECT_EQ(areas_[0]->words().ended, 1u);
}

// --- Streams ---

// One stream of bytes in memory of both kinds, each byte at its place in either.
class Mixed {
 public:
  Mixed(size_t bytes, uint64_t seed) : library_(bytes), program_(bytes), isOurs_(bytes) {
    static constexpr size_t kSizes[] = {1, 2, 8, 48, 100, 1000, 1024, 4096, 5000, 70'000, 300'000};
    std::mt19937_64 random(seed);
    for (size_t at = 0; at < bytes;) {
      const size_t most = kSizes[random() % std::size(kSizes)];
      const size_t end = std::min(bytes, at + 1 + random() % most);
      const bool isOurs = random() % 2 == 0;
      std::fill(isOurs_.begin() + static_cast<ptrdiff_t>(at),
                isOurs_.begin() + static_cast<ptrdiff_t>(end), isOurs);
      ends_.push_back(end);
      at = end;
    }
  }
  size_t bytes() const { return isOurs_.size(); }
  void fill(uint64_t seed) {
    fillPattern(library_, seed);
    fillPattern(program_, seed);
  }
  // The first `count` slices from byte `at` on.
  PipeSlices slices(size_t at, size_t count, std::vector<IoSlice>& room) {
    room.clear();
    auto end = std::upper_bound(ends_.begin(), ends_.end(), at);
    for (; end != ends_.end() && room.size() < count; at = *end++)
      room.push_back({(isOurs_[at] ? library_ : program_).data() + at, *end - at});
    return {room, library_};
  }
  size_t firstWrong(uint64_t seed) const {
    for (size_t i = 0; i < bytes(); ++i)
      if ((isOurs_[i] ? library_ : program_)[i] != patternByte(i, seed)) return i;
    return bytes();
  }
  // No byte has come into memory of the other kind.
  bool isRestUntouched() const {
    for (size_t i = 0; i < bytes(); ++i)
      if ((isOurs_[i] ? program_ : library_)[i] != std::byte{}) return false;
    return true;
  }

 private:
  Bytes library_;
  Bytes program_;
  std::vector<bool> isOurs_;
  std::vector<size_t> ends_;
};

// How a side finds out that it may sleep.
enum class Looks : uint8_t { kByTrying, kBeforehand };

class LendingStream : public LendingPipeTest, public testing::WithParamInterface<Looks> {
 protected:
  static constexpr size_t kBytes = 4'000'000;

  // Both sides sleep whenever the pipe allows it: a ring that is missing hangs the test.
  void stream(uint64_t seed) {
    Mixed out(kBytes, seed);
    Mixed in(kBytes, seed + 1);
    out.fill(seed);
    std::thread writer([&] {
      std::mt19937_64 random(seed);
      std::vector<IoSlice> room;
      for (size_t at = 0; at < kBytes;) {
        const size_t bytes = MUST(a_.write(out.slices(at, 1 + random() % 100, room)));
        at += bytes;
        a_.refresh();
        if (GetParam() == Looks::kByTrying ? bytes == 0 : !a_.writable()) sleepers_[0].sleep();
      }
      while (a_.returned() != a_.lent()) sleepers_[0].sleep();
    });
    std::mt19937_64 random(seed + 1);
    std::vector<IoSlice> room;
    for (size_t at = 0; at < kBytes;) {
      const size_t bytes = MUST(b_.read(in.slices(at, 1 + random() % 100, room)));
      at += bytes;
      b_.refresh();
      if (at < kBytes && (GetParam() == Looks::kByTrying ? bytes == 0 : !b_.readable()))
        sleepers_[1].sleep();
    }
    writer.join();
    EXPECT_EQ(in.firstWrong(seed), kBytes);
    EXPECT_TRUE(in.isRestUntouched());
    EXPECT_NE(a_.lent(), 0u);
  }
};

TEST_P(LendingStream, MixedMemoryArrivesWhole) {
  for (uint64_t seed = 1; seed <= 4; ++seed) stream(seed);
}

// One buffer of the program for everything: it is filled again as soon as it has come back.
TEST_P(LendingStream, MemoryThatCameBackIsFree) {
  constexpr size_t kRounds = 200;
  constexpr size_t kMost = 150'000;
  const auto sizeOf = [](size_t round) { return 1 + round * 7919 % kMost; };
  std::thread writer([&] {
    Bytes buffer(kMost);
    for (size_t round = 0; round < kRounds; ++round) {
      const std::span<std::byte> part = std::span(buffer).first(sizeOf(round));
      fillPattern(part, round);
      for (size_t at = 0; at < part.size();) {
        const size_t bytes = MUST(write(a_, part.subspan(at)));
        at += bytes;
        if (GetParam() == Looks::kByTrying ? bytes == 0 : !a_.writable()) sleepers_[0].sleep();
      }
      while (a_.returned() != a_.lent()) sleepers_[0].sleep();
    }
  });
  for (size_t round = 0; round < kRounds; ++round) {
    Bytes in(sizeOf(round));
    for (size_t at = 0; at < in.size();) {
      const size_t bytes = MUST(read(b_, std::span(in).subspan(at)));
      at += bytes;
      if (bytes == 0) sleepers_[1].sleep();
    }
    EXPECT_EQ(firstWrong(in, round), in.size()) << round;
  }
  writer.join();
}

INSTANTIATE_TEST_SUITE_P(LendingPipe, LendingStream,
                         testing::Values(Looks::kByTrying, Looks::kBeforehand));

TEST_F(LendingPipeTest, BothDirectionsAtOnce) {
  for (size_t round = 0; round < 30; ++round) {
    Bytes up = pattern(20'000, round);
    Bytes down = pattern(30'000, round + 1);
    ASSERT_EQ(writeAll(a_, up), up.size());
    ASSERT_EQ(writeAll(b_, down), down.size());
    EXPECT_EQ(readAll(a_).bytes, down);
    EXPECT_EQ(readAll(b_).bytes, up);
  }
}

// Pages go from one program to the other: not into memory of the library that is only there for
// what may follow, because what comes before them may say where they go.
TEST_F(LendingPipeTest, PagesDoNotFollowIntoMemoryOfTheLibrary) {
  Bytes library = pattern(48, 1);
  Bytes program = pattern(5000, 2);
  const std::vector<IoSlice> slices{{library.data(), 48}, {program.data(), 5000}};
  ASSERT_EQ(MUST(a_.write({slices, library})), 5048u);
  Bytes ahead(6000);
  ASSERT_EQ(MUST(read(b_, ahead, /*areOurs=*/true)), 48u);
  // Where there is no other memory, they do.
  EXPECT_EQ(MUST(read(b_, std::span(ahead).first(100), /*areOurs=*/true)), 100u);
  EXPECT_EQ(firstWrong(std::span(ahead).first(100), 2), 100u);
  EXPECT_EQ(readAll(b_).bytes.size(), 4900u);
}

TEST_F(LendingPipeTest, AFullPipeTakesNothingAndTheReaderRings) {
  for (const bool areOurs : {false, true}) {
    Bytes out = pattern(1'000'000, 1);
    const size_t bytes = writeAll(a_, out, areOurs);
    ASSERT_LT(bytes, out.size());
    EXPECT_FALSE(a_.writable());
    EXPECT_EQ(MUST(write(a_, out, areOurs)), 0u);
    (void)sleepers_[0].rung();
    EXPECT_FALSE(sleepers_[0].rung());
    const Came came = readAll(b_);
    EXPECT_EQ(came.bytes.size(), bytes);
    EXPECT_EQ(firstWrong(came.bytes, 1), bytes);
    EXPECT_TRUE(sleepers_[0].rung());
    EXPECT_TRUE(a_.writable());
    EXPECT_NE(MUST(write(a_, out, areOurs)), 0u);
    EXPECT_NE(readAll(b_).bytes.size(), 0u);
  }
}

// writable() alone says it, after a write that took a part.
TEST_F(LendingPipeTest, AWriterThatFindsNoRoomIsWoken) {
  for (const bool areOurs : {false, true}) {
    Bytes out = pattern(1'000'000, 1);
    ASSERT_LT(MUST(write(a_, out, areOurs)), out.size());
    a_.refresh();
    while (a_.writable()) ASSERT_NE(MUST(write(a_, out, areOurs)), 0u);
    a_.refresh();
    (void)sleepers_[0].rung();
    while (!readAll(b_).bytes.empty()) {
    }
    EXPECT_TRUE(sleepers_[0].rung()) << areOurs;
    EXPECT_TRUE(a_.writable());
  }
}

// --- Memory that is lent ---

TEST_F(LendingPipeTest, PagesComeBackWhenTheReaderHasThem) {
  Bytes out = pattern(40'000, 1);
  Bytes library = pattern(100, 1);
  EXPECT_EQ(a_.lent(), 0u);
  EXPECT_EQ(a_.returned(), 0u);
  ASSERT_EQ(MUST(write(a_, library, /*areOurs=*/true)), 100u);
  EXPECT_EQ(a_.lent(), 0u) << "this was copied";
  ASSERT_EQ(MUST(write(a_, out)), out.size());
  EXPECT_EQ(a_.lent(), out.size());
  EXPECT_EQ(a_.returned(), 0u);
  EXPECT_EQ(readAll(b_, 100).bytes.size(), 100u);
  EXPECT_EQ(a_.returned(), 0u);
  EXPECT_EQ(readAll(b_, out.size() - 1).bytes.size(), out.size() - 1);
  EXPECT_LT(a_.returned(), out.size()) << "one byte is in the pipe";
  (void)sleepers_[0].rung();
  ASSERT_LT(a_.returned(), out.size());
  EXPECT_EQ(readAll(b_, 1).bytes.size(), 1u);
  EXPECT_TRUE(sleepers_[0].rung()) << "the writer looked, and it was too early";
  EXPECT_EQ(a_.returned(), out.size());
}

// What a look has said, or a write that found no room, holds after writes of other memory.
TEST_F(LendingPipeTest, AWriterThatLookedIsWokenAfterOtherWrites) {
  Bytes out = pattern(5000, 1);
  ASSERT_EQ(MUST(write(a_, out)), out.size());
  EXPECT_EQ(a_.returned(), 0u);
  ASSERT_EQ(MUST(write(a_, std::span(out).first(100), /*areOurs=*/true)), 100u);
  (void)sleepers_[0].rung();
  EXPECT_EQ(readAll(b_).bytes.size(), 5100u);
  EXPECT_TRUE(sleepers_[0].rung());
  EXPECT_EQ(a_.returned(), 5000u);
}

TEST_F(LendingPipeTest, AWriterThatFoundNoRoomIsWokenAfterOtherWrites) {
  Bytes out = pattern(1'000'000, 1);
  ASSERT_LT(writeAll(a_, out), out.size());
  ASSERT_EQ(MUST(write(a_, std::span(out).first(100), /*areOurs=*/true)), 100u);
  if (a_.writable()) return;  // it needs no ring
  (void)sleepers_[0].rung();
  while (!readAll(b_).bytes.empty()) {
  }
  EXPECT_TRUE(sleepers_[0].rung());
}

TEST_F(LendingPipeTest, NobodyIsRungWithoutNeed) {
  Bytes out = pattern(1'000'000, 1);
  const std::span<std::byte> part = std::span(out).first(5000);
  const auto isRungByARead = [&] {
    (void)sleepers_[0].rung();
    EXPECT_NE(readAll(b_).bytes.size(), 0u);
    return sleepers_[0].rung();
  };
  ASSERT_EQ(MUST(write(a_, part)), part.size());
  EXPECT_FALSE(isRungByARead());
  // Not any more after what the writer waited for: pages, or room.
  ASSERT_EQ(MUST(write(a_, part)), part.size());
  EXPECT_LT(a_.returned(), a_.lent());
  EXPECT_TRUE(isRungByARead());
  EXPECT_EQ(a_.returned(), a_.lent());
  ASSERT_EQ(MUST(write(a_, part)), part.size());
  EXPECT_FALSE(isRungByARead());
  ASSERT_LT(writeAll(a_, out), out.size());
  EXPECT_TRUE(isRungByARead());
  (void)readAll(b_);
  ASSERT_EQ(MUST(write(a_, part)), part.size());
  EXPECT_FALSE(isRungByARead());
}

// The bytes are those that the memory has when they are taken: it was lent, not copied.
TEST_F(LendingPipeTest, PagesAreNotCopied) {
  Bytes out(40'000, std::byte{1});
  ASSERT_EQ(MUST(write(a_, out)), out.size());
  std::fill(out.begin(), out.end(), std::byte{2});
  EXPECT_EQ(readAll(b_).bytes, out);
}

TEST_F(LendingPipeTest, AWriterThatEndsTakesItsPagesBack) {
  Bytes library = pattern(100, 1);
  Bytes out = pattern(50'000, 2);
  const std::vector<IoSlice> slices{{library.data(), 100}, {out.data(), out.size()}};
  ASSERT_EQ(MUST(a_.write({slices, library})), 50'100u);
  ASSERT_EQ(readAll(b_, 100).bytes, library);
  const Came some = readAll(b_, 1000);
  ASSERT_EQ(some.bytes.size(), 1000u);
  (void)sleepers_[1].rung();
  a_.close();
  EXPECT_TRUE(sleepers_[1].rung());
  EXPECT_TRUE(b_.readable());
  const Came came = readAll(b_);
  EXPECT_TRUE(came.bytes.empty());
  EXPECT_EQ(came.code, Code::kPeerLost);
  EXPECT_EQ(readAll(b_).code, Code::kPeerLost);
}

TEST_F(ByHand, NoPageCanBeReadAfterTheEnd) {
  Bytes out = pattern(50'000, 2);
  ASSERT_EQ(MUST(write(a_, out)), out.size());
  const Fd pipe = MUST(lines_[1]->take());
  std::byte byte{};
  ASSERT_EQ(::read(pipe.get(), &byte, 1), 1);
  a_.close();
  EXPECT_LE(::read(pipe.get(), &byte, 1), 0);
}

// What went through the ring comes before the end.
TEST_F(LendingPipeTest, TheEndComesAfterTheBytesOfTheRing) {
  Bytes out = pattern(3000, 2);
  ASSERT_EQ(MUST(write(a_, out, /*areOurs=*/true)), out.size());
  a_.close();
  const Came came = readAll(b_);
  EXPECT_EQ(came.bytes, out);
  EXPECT_EQ(came.code, Code::kPeerLost);
  EXPECT_EQ(write(b_, out).status().code(), Code::kPeerLost);
}

// A writer that ends takes its pages out of the pipe while the reader may be reading: what is
// behind them is not taken for them.
TEST_F(ByHand, AnEndMidwayGivesNoWrongByte) {
  givePipe();
  const Bytes stream = pattern(10'000, 4);
  putIn(stream);
  for (int i = 0; i < 2; ++i) {
    record(0, 5000, {});
    add(std::byte{0});
  }
  tell();
  areas_[0]->words().ended = 1;
  Bytes taken(1000);
  ASSERT_EQ(::read(out_.get(), taken.data(), taken.size()), 1000);
  const Came came = readAll(b_);
  EXPECT_EQ(firstWrong(came.bytes, 4), came.bytes.size());
  EXPECT_EQ(came.code, Code::kPeerLost);
}

TEST_F(LendingPipeTest, AnEndBesideTheReaderGivesNoWrongByte) {
  Bytes out = pattern(500'000, 6);
  for (int round = 0; round < 100; ++round) {
    Joined pair;
    const size_t bytes = writeAll(*pair.pipes_[0], out);
    std::atomic<bool> go{false};
    std::thread writer([&] {
      while (!go) {
      }
      pair.pipes_[0]->close();
    });
    Came came = readAll(*pair.pipes_[1], 1000);
    go = true;
    while (came.code == Code::kOk) {
      const Came more = readAll(*pair.pipes_[1]);
      came.code = more.code;
      came.bytes.insert(came.bytes.end(), more.bytes.begin(), more.bytes.end());
    }
    writer.join();
    EXPECT_EQ(came.code, Code::kPeerLost);
    EXPECT_LE(came.bytes.size(), bytes);
    ASSERT_EQ(firstWrong(came.bytes, 6), came.bytes.size()) << "round " << round;
  }
}

// --- Memory that is lost ---

class LossInPipe : public LendingPipeTest, public testing::WithParamInterface<Loss> {
 protected:
  LossInPipe() {
    fillPattern({memory_.data(), FileMemory::kBytes}, 4);
    memory_.lose(GetParam());
  }
  std::span<std::byte> bad(size_t bytes) const {
    return {memory_.data() + FileMemory::kBytes / 2 + 3, bytes};
  }
  FileMemory memory_{std::byte{7}};
};

TEST_P(LossInPipe, IsNotSent) {
  Bytes good = pattern(9000, 1);
  Bytes library = pattern(500, 2);
  for (const size_t bytes : {size_t{10}, size_t{9000}, size_t{300'000}}) {
    // First behind other memory, which is sent.
    const std::vector<IoSlice> slices{{library.data(), library.size()},
                                      {good.data(), good.size()},
                                      {bad(bytes).data(), bytes},
                                      {library.data(), library.size()}};
    std::vector<IoSlice> all = slices;
    std::span<IoSlice> left(all);
    Result<size_t> written = size_t{0};
    do {
      left = left.subspan(takeBytes(left, *written));
      written = a_.write({left, library});
    } while (written && *written != 0);
    EXPECT_EQ(written.status().code(), Code::kRevoked);
    EXPECT_EQ(left.size(), 2u) << "all before it";
    const uint64_t lent = a_.lent();
    EXPECT_EQ(write(a_, bad(bytes)).status().code(), Code::kRevoked);
    EXPECT_EQ(a_.lent(), lent);
    const Came came = readAll(b_);
    EXPECT_EQ(came.code, Code::kOk);
    ASSERT_EQ(came.bytes.size(), 9500u);
    EXPECT_EQ(firstWrong(std::span(came.bytes).first(500), 2), 500u);
    EXPECT_EQ(firstWrong(std::span(came.bytes).subspan(500), 1), 9000u);
    // And the stream goes on.
    ASSERT_EQ(writeAll(a_, good), good.size());
    ASSERT_EQ(writeAll(a_, library, /*areOurs=*/true), library.size());
    EXPECT_EQ(readAll(b_).bytes.size(), 9500u);
    EXPECT_EQ(a_.returned(), a_.lent());
  }
}

TEST_P(LossInPipe, IsNotFilled) {
  Bytes out = pattern(40'000, 5);
  for (const bool areOurs : {false, true}) {
    const size_t bytes = areOurs ? 4000 : out.size();
    const std::span<std::byte> sent = std::span(out).first(bytes);
    ASSERT_EQ(MUST(write(a_, sent, areOurs)), bytes);
    for (const size_t room : {size_t{1}, size_t{100}, size_t{20'000}, size_t{300'000}})
      EXPECT_EQ(read(b_, bad(room)).status().code(), Code::kRevoked) << areOurs << room;
    EXPECT_TRUE(b_.readable());
    // In the middle, too.
    Bytes in(10);
    ASSERT_EQ(MUST(read(b_, in)), 10u);
    EXPECT_EQ(read(b_, bad(100)).status().code(), Code::kRevoked);
    const Came came = readAll(b_);
    in.insert(in.end(), came.bytes.begin(), came.bytes.end());
    ASSERT_EQ(in.size(), bytes);
    EXPECT_EQ(firstWrong(in, 5), bytes);
  }
  EXPECT_EQ(a_.returned(), a_.lent());
}

INSTANTIATE_TEST_SUITE_P(LendingPipe, LossInPipe,
                         testing::Values(Loss::kCut, Loss::kUnmapped, Loss::kProtected));

// --- Where nothing can be lent ---

TEST_F(LendingPipeTest, ThroughTheRingWhereNoDescriptorIsLeft) {
  Bytes out = pattern(100'000, 1);
  Bytes library = pattern(100, 2);
  const std::vector<IoSlice> slices{{library.data(), 100}, {out.data(), 3000}};
  Came came;
  {
    const FewDescriptors few(0);
    ASSERT_EQ(MUST(a_.write({slices, library})), 3100u);
    came = readAll(b_);
    for (size_t at = 3000; at < out.size();) {
      const size_t bytes = MUST(write(a_, std::span(out).subspan(at)));
      ASSERT_NE(bytes, 0u);
      at += bytes;
      const Came more = readAll(b_);
      came.bytes.insert(came.bytes.end(), more.bytes.begin(), more.bytes.end());
    }
    EXPECT_EQ(a_.lent(), 0u);
  }
  ASSERT_EQ(came.bytes.size(), 100'100u);
  EXPECT_EQ(std::memcmp(came.bytes.data(), library.data(), 100), 0);
  EXPECT_EQ(firstWrong(std::span(came.bytes).subspan(100), 1), out.size());
}

// Memory that cannot be read does not go through the ring, either.
TEST_P(LossInPipe, IsNotSentThroughTheRing) {
  const FewDescriptors few(0);
  Bytes library = pattern(50, 2);
  const std::vector<IoSlice> slices{{library.data(), 50}, {bad(300).data(), 300}};
  EXPECT_EQ(write(a_, bad(300)).status().code(), Code::kRevoked);
  EXPECT_EQ(MUST(a_.write({slices, library})), 50u);
  EXPECT_EQ(write(a_, bad(300)).status().code(), Code::kRevoked);
  EXPECT_EQ(readAll(b_).bytes, library);
}

// The peer has not looked at its socket for long: no descriptor can be given now.
TEST_F(LendingPipeTest, ThroughTheRingUntilThePeerLooks) {
  const std::byte byte{1};
  while (sendSome(sockets_[0].get(), {&byte, 1})) {
  }
  Bytes out = pattern(3000, 1);
  ASSERT_EQ(MUST(write(a_, out)), out.size());
  EXPECT_EQ(a_.lent(), 0u);
  EXPECT_EQ(readAll(b_).bytes, out);
  while (bytesOnTheWay(sockets_[0].get()) != 0) ASSERT_TRUE(lines_[1]->drain());
  ASSERT_EQ(MUST(write(a_, out)), out.size());
  EXPECT_EQ(a_.lent(), out.size());
  EXPECT_EQ(readAll(b_).bytes, out);
}

TEST_F(LendingPipeTest, ThroughThePipeWherePagesCannotBeLent) {
  Bytes out = pattern(300'000, 1);
  // The filter is this thread's.
  std::thread writer([&] {
    refuseCalls(SYS_vmsplice, EPERM);
    for (size_t at = 0; at < out.size();) {
      const size_t bytes = MUST(write(a_, std::span(out).subspan(at)));
      // Copied: what is told to have been taken may change at once.
      if (at == 0) std::fill(out.begin(), out.begin() + 100, std::byte{0xee});
      at += bytes;
      if (bytes == 0) sleepers_[0].sleep();
    }
  });
  Bytes in;
  while (in.size() < out.size()) {
    const Came came = readAll(b_);
    ASSERT_EQ(came.code, Code::kOk);
    in.insert(in.end(), came.bytes.begin(), came.bytes.end());
    if (came.bytes.empty()) sleepers_[1].sleep();
  }
  writer.join();
  EXPECT_EQ(firstWrong(in, 1), in.size());
}

TEST_F(LendingPipeTest, AReaderWithoutADescriptorSaysSo) {
  Bytes out = pattern(3000, 1);
  ASSERT_EQ(MUST(write(a_, out)), out.size());
  Bytes in(3000);
  const FewDescriptors few(0);
  EXPECT_EQ(read(b_, in).status().code(), Code::kUnavailable);
  EXPECT_EQ(read(b_, in).status().code(), Code::kUnavailable);
}

// --- The line ---

class KnockLineTest : public testing::Test {
 protected:
  std::pair<Fd, Fd> sockets_ = MUST(socketPair());
  KnockLine near_{sockets_.first.get()};
  KnockLine far_{sockets_.second.get()};

  void knocks(int count) {
    for (int i = 0; i < count; ++i) ASSERT_TRUE(knock(sockets_.first.get()));
  }
  bool isSilent() const { return bytesOnTheWay(sockets_.first.get()) == 0; }
};

TEST_F(KnockLineTest, DrainsKnocksUntilTheEnd) {
  EXPECT_TRUE(far_.drain());
  knocks(3);
  EXPECT_FALSE(isSilent());
  EXPECT_TRUE(far_.drain());
  EXPECT_TRUE(isSilent());
  EXPECT_FALSE(MUST(far_.take()));
  knocks(3);
  sockets_.first.reset();
  EXPECT_FALSE(far_.drain());
}

TEST_F(KnockLineTest, ADescriptorIsKeptUntilItIsTaken) {
  Fd event = MUST(makeEventFd());
  knocks(2);
  ASSERT_OK(near_.give(event));
  knocks(2);
  EXPECT_FALSE(isSilent()) << "it wakes, too";
  EXPECT_TRUE(far_.drain());
  EXPECT_TRUE(far_.drain());
  signalEventFd(event.get());
  const Fd came = MUST(far_.take());
  ASSERT_TRUE(came);
  EXPECT_NE(came.get(), event.get());
  EXPECT_EQ(drainEventFd(came.get()), 1u) << "it is of the same file";
  EXPECT_NE(::fcntl(came.get(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_FALSE(MUST(far_.take())) << "only once";
}

TEST_F(KnockLineTest, TakesWithoutADrainBefore) {
  const Fd event = MUST(makeEventFd());
  ASSERT_OK(near_.give(event));
  EXPECT_TRUE(MUST(far_.take()));
  EXPECT_TRUE(isSilent());
}

// Who sleeps at the socket would otherwise sleep on.
TEST_F(KnockLineTest, SaysThatItTookKnocksAlong) {
  int heard = 0;
  KnockLine line(sockets_.second.get(), [&] { ++heard; });
  const Fd event = MUST(makeEventFd());
  ASSERT_OK(near_.give(event));
  EXPECT_TRUE(MUST(line.take()));
  EXPECT_EQ(heard, 1);
  EXPECT_FALSE(MUST(line.take()));
  EXPECT_EQ(heard, 1) << "there was none";
  ASSERT_OK(near_.give(event));
  EXPECT_TRUE(line.drain());
  knocks(1);
  EXPECT_TRUE(MUST(line.take()));
  EXPECT_EQ(heard, 1) << "it had come, and the knock is left to the sleeper";
  EXPECT_FALSE(isSilent());
}

TEST_F(KnockLineTest, TheLastOneIsKept) {
  Fd events[2] = {MUST(makeEventFd()), MUST(makeEventFd())};
  for (const Fd& event : events) ASSERT_OK(near_.give(event));
  const Fd came = MUST(far_.take());
  signalEventFd(came.get());
  EXPECT_EQ(drainEventFd(events[0].get()), 0u);
  EXPECT_EQ(drainEventFd(events[1].get()), 1u);
  EXPECT_FALSE(MUST(far_.take()));
}

TEST_F(KnockLineTest, EachDirectionHasItsOwn) {
  const Fd event = MUST(makeEventFd());
  ASSERT_OK(near_.give(event));
  EXPECT_FALSE(MUST(near_.take()));
  ASSERT_OK(far_.give(event));
  EXPECT_TRUE(MUST(near_.take()));
  EXPECT_TRUE(MUST(far_.take()));
}

TEST_F(KnockLineTest, SaysThatOneWasLost) {
  const Fd event = MUST(makeEventFd());
  ASSERT_OK(near_.give(event));
  {
    const FewDescriptors few(0);
    EXPECT_EQ(far_.take().status().code(), Code::kUnavailable);
    EXPECT_FALSE(MUST(far_.take())) << "once";
    ASSERT_OK(near_.give(event));
    EXPECT_TRUE(far_.drain());
  }
  EXPECT_EQ(far_.take().status().code(), Code::kUnavailable) << "a drain had no place for it";
  // A later one counts.
  ASSERT_OK(near_.give(event));
  EXPECT_TRUE(MUST(far_.take()));
}

TEST_F(KnockLineTest, SaysWhyNothingCanBeGiven) {
  const Fd event = MUST(makeEventFd());
  const std::byte byte{1};
  while (sendSome(sockets_.first.get(), {&byte, 1})) {
  }
  EXPECT_EQ(near_.give(event).code(), Code::kTryAgain);
  sockets_.second.reset();
  EXPECT_EQ(near_.give(event).code(), Code::kPeerLost);
}

}  // namespace
}  // namespace peerlane
