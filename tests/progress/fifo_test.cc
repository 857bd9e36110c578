// SPDX-License-Identifier: Apache-2.0
//
// The FIFO of a port: pushers by the code that kernels run, one popper, and slots written by hand.
// Letters and numbers in comments are those of the table in docs/port_channel.md.
#include "peerlane/progress/fifo.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/core/expect_ok.h"

namespace peerlane {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// A FIFO and its two pieces of memory.
class Ring {
 public:
  explicit Ring(uint32_t slots)
      : host_(Fifo::hostBytes(slots) / 64 + 1), fifo_(slots, bytes(host_), bytes(device_)) {}
  Fifo* operator->() { return &fifo_; }
  const port::FifoHandle& handle() const { return fifo_.handle(); }
  uint64_t push(const port::PortRequest& request) const { return port::push(handle(), request); }
  std::atomic_ref<uint64_t> head() const { return std::atomic_ref<uint64_t>(*handle().head); }
  uint64_t tail() const { return port::loadAcquire(handle().tail); }
  // Stores one word of the slot at `position`, marked for its lap.
  void write(uint64_t position, bool isSecond, uint64_t word) const {
    port::WordPair& slot = handle().slots[position & (handle().slotCount - 1)];
    const uint64_t mark = port::lapMark(position, handle().lapShift);
    std::atomic_ref<uint64_t>(isSecond ? slot.second : slot.first).store(word | mark);
  }

 private:
  struct alignas(64) Line {
    std::byte bytes[64]{};
  };
  static std::byte* bytes(std::vector<Line>& lines) { return lines[0].bytes; }
  std::vector<Line> host_;
  std::vector<Line> device_{Fifo::kDeviceBytes / 64};
  Fifo fifo_;
};

port::PortRequest shortRequest(uint64_t number) {
  return {.verbs = port::kPutVerb,
          .semaphore = static_cast<uint32_t>(number % 4096),
          .bytes = number % (1 << 28)};
}
port::PortRequest longRequest(uint64_t number) {
  return {.verbs = port::kPutVerb,
          .semaphore = static_cast<uint32_t>(number % 4096),
          .fromOffset = number << 8,
          .bytes = number,
          .value = number + 2};
}
void expectSame(const port::PortRequest& seen, const port::PortRequest& given) {
  EXPECT_EQ(seen.verbs, given.verbs);
  EXPECT_EQ(seen.semaphore, given.semaphore);
  EXPECT_EQ(seen.bytes, given.bytes);
  EXPECT_EQ(seen.fromOffset, given.fromOffset);
  EXPECT_EQ(seen.value, given.value);
}

// D1: sizes.
TEST(Fifo, RefusesSizesThatAreNoPowerOfTwo) {
  for (uint32_t slots = Fifo::kLeastSlots; slots <= Fifo::kMostSlots; slots *= 2)
    EXPECT_OK(Fifo::check(slots));
  for (const uint32_t slots : {0u, 1u, 3u, 5u, 6u, 7u, 100u, 511u, 513u, Fifo::kMostSlots - 1,
                               Fifo::kMostSlots + 1, Fifo::kMostSlots * 2, 1u << 31, ~0u}) {
    const Status refused = Fifo::check(slots);
    EXPECT_EQ(refused.code(), Code::kInvalidArgument) << slots;
    EXPECT_NE(refused.message().find(std::to_string(slots) + " slots; a power of two"),
              std::string_view::npos)
        << refused.toString();
  }
}

// D1: 10,000 requests, by another thread, through a small and a large ring.
TEST(Fifo, TenThousandRequestsComeInOrder) {
  constexpr uint64_t kRequests = 10'000;
  for (const uint32_t slots : {2u, 8u, 512u}) {
    SCOPED_TRACE(slots);
    Ring ring(slots);
    std::thread pusher([&] {
      for (uint64_t i = 0; i < kRequests; ++i)
        ASSERT_NE(ring.push(i % 3 == 0 ? longRequest(i) : shortRequest(i)), 0u);
    });
    const auto deadline =
        Clock::now() + 90s;  // a turn of both is two time slices on a busy machine
    for (uint64_t i = 0; i < kRequests && Clock::now() < deadline;) {
      port::PortRequest seen;
      if (!ring->pop(seen)) {
        std::this_thread::yield();
        continue;
      }
      expectSame(seen, i % 3 == 0 ? longRequest(i) : shortRequest(i));
      ++i;
    }
    if (Clock::now() >= deadline) ring->close();  // the pusher is told, and says so
    pusher.join();
    EXPECT_EQ(ring->position(), ring.tail());
    EXPECT_EQ(ring->position(), kRequests + (kRequests + 2) / 3);
    port::PortRequest none;
    EXPECT_FALSE(ring->pop(none));
  }
}

// D1: a request of zeros is one, and an empty slot is none.
TEST(Fifo, ARequestOfZerosIsARequest) {
  Ring ring(4);
  port::PortRequest seen;
  for (int lap = 0; lap < 3; ++lap)
    for (int i = 0; i < 4; ++i) {
      EXPECT_FALSE(ring->pop(seen));
      ring.push({.verbs = 0, .value = 1});
      ASSERT_TRUE(ring->pop(seen));
      EXPECT_EQ(seen.verbs | seen.bytes | seen.semaphore, 0u);
    }
}

// D1: four laps and more, each filled to the brim; long requests begin at even and at odd slots and
// across the end of the ring.
TEST(Fifo, WrapsAtTheLapBoundary) {
  constexpr uint32_t kSlots = 8;
  for (uint32_t lead = 0; lead < kSlots; ++lead) {
    SCOPED_TRACE(lead);
    Ring ring(kSlots);
    port::PortRequest seen;
    for (uint32_t i = 0; i < lead; ++i) {
      EXPECT_EQ(ring.push(shortRequest(i)), i + 1);
      ASSERT_TRUE(ring->pop(seen));
    }
    uint64_t number = lead, position = lead;
    while (position < lead + 5 * kSlots) {
      // long, short, short, long, long: eight slots
      std::vector<port::PortRequest> given;
      for (const bool isLong : {true, false, false, true, true}) {
        given.push_back(isLong ? longRequest(number) : shortRequest(number));
        position += isLong ? 2 : 1;
        ++number;
        EXPECT_EQ(ring.push(given.back()), position);
      }
      for (const port::PortRequest& each : given) {
        ASSERT_TRUE(ring->pop(seen));
        expectSame(seen, each);
      }
      EXPECT_FALSE(ring->pop(seen)) << "what lies there is of this lap, and was taken";
      EXPECT_EQ(ring.tail(), position);
    }
  }
}

// F3: far more threads than slots: nothing is lost or doubled, and each thread's own order stays.
TEST(Fifo, SixtyFourThreadsShareFewSlots) {
  constexpr uint32_t kThreads = 64;
  constexpr uint64_t kEach = 60;  // or fewer, on a machine that is slow to hand over to a thread
  for (const uint32_t slots : {2u, 4u}) {
    SCOPED_TRACE(slots);
    Ring ring(slots);
    std::vector<std::thread> threads;
    std::atomic<uint64_t> pushed{0};
    std::atomic<uint32_t> ended{0};
    const auto enough = Clock::now() + 10s;
    for (uint32_t t = 0; t < kThreads; ++t)
      threads.emplace_back([&, t] {
        for (uint64_t i = 0; i < kEach && Clock::now() < enough; ++i) {
          port::PortRequest request{.semaphore = t, .bytes = i};
          if ((t + i) % 2 != 0) request.value = i + 2;  // two slots
          ASSERT_NE(ring.push(request), 0u);
          pushed.fetch_add(1);
        }
        ended.fetch_add(1);
      });
    std::vector<uint64_t> next(kThreads, 0);
    const auto deadline = Clock::now() + 90s;
    uint64_t seenInAll = 0;
    while ((ended.load() < kThreads || seenInAll < pushed.load()) && Clock::now() < deadline) {
      port::PortRequest seen;
      if (!ring->pop(seen)) {
        std::this_thread::yield();
        continue;
      }
      ASSERT_LT(seen.semaphore, kThreads);
      EXPECT_EQ(seen.bytes, next[seen.semaphore]++);
      EXPECT_EQ(seen.value, (seen.semaphore + seen.bytes) % 2 != 0 ? seen.bytes + 2 : 1);
      ++seenInAll;
    }
    if (Clock::now() >= deadline) ring->close();  // the pushers are told, and say so
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(seenInAll, pushed.load());
    EXPECT_GE(seenInAll, kThreads);
    EXPECT_EQ(ring.tail(), ring.head().load());
  }
}

TEST(Fifo, APusherWithoutRoomWaitsForThePopper) {
  Ring ring(2);
  ASSERT_EQ(ring.push(longRequest(1)), 2u);
  std::atomic<uint64_t> behind{0};
  std::thread pusher([&] { behind.store(ring.push(shortRequest(2))); });
  while (ring.head().load() < 3) std::this_thread::yield();
  EXPECT_EQ(behind.load(), 0u) << "its slot still holds what nobody has taken";
  port::PortRequest seen;
  ASSERT_TRUE(ring->pop(seen));
  expectSame(seen, longRequest(1));
  pusher.join();
  EXPECT_EQ(behind.load(), 3u);
  ASSERT_TRUE(ring->pop(seen));
  expectSame(seen, shortRequest(2));
}

TEST(Fifo, ClosingEndsAPusherWithoutRoom) {
  Ring ring(2);
  ASSERT_EQ(ring.push(longRequest(1)), 2u);
  std::atomic<uint64_t> behind{99};
  std::thread pusher([&] { behind.store(ring.push(longRequest(2))); });
  while (ring.head().load() < 4) std::this_thread::yield();
  EXPECT_EQ(behind.load(), 99u);
  ring->close();
  pusher.join();
  EXPECT_EQ(behind.load(), 0u);
}

// Few of those who wait look at the host's words: the others hear of the end from them.
TEST(Fifo, ClosingEndsManyPushersWithoutRoom) {
  Ring ring(2);
  ASSERT_EQ(ring.push(longRequest(1)), 2u);
  constexpr uint64_t kPushers = port::kLookers + 8;
  std::vector<std::thread> pushers;
  for (uint64_t i = 0; i < kPushers; ++i)
    pushers.emplace_back([&] { EXPECT_EQ(ring.push(longRequest(2)), 0u); });
  while (ring.head().load() < 2 + 2 * kPushers) std::this_thread::yield();
  ring->close();
  for (std::thread& pusher : pushers) pusher.join();
  EXPECT_EQ(ring.push(shortRequest(1)), 0u) << "who comes later hears of it, too";
}

TEST(Fifo, WhereThereIsRoomAnEndIsNotLookedAt) {
  Ring ring(2);
  ring->close();
  EXPECT_EQ(ring.push(shortRequest(1)), 1u);
  EXPECT_EQ(ring.push(shortRequest(1)), 2u);
  EXPECT_EQ(ring.push(shortRequest(1)), 0u);
}

// A pusher may have its place, and not have written it, while another one behind it is done.
TEST(Fifo, ARequestBehindAPlaceThatIsNotWrittenIsThere) {
  Ring ring(4);
  EXPECT_FALSE(ring->hasAny());
  ring.head().store(1);
  EXPECT_FALSE(ring->hasAny());
  EXPECT_EQ(ring.push(shortRequest(7)), 2u);
  EXPECT_TRUE(ring->hasAny());
  port::PortRequest seen;
  EXPECT_FALSE(ring->pop(seen));
  const port::EncodedRequest first = port::encode(shortRequest(6));
  ring.write(0, true, first.halves[0].second);
  ring.write(0, false, first.halves[0].first);
  for (const uint32_t number : {6u, 7u}) {
    ASSERT_TRUE(ring->pop(seen));
    expectSame(seen, shortRequest(number));
  }
  EXPECT_FALSE(ring->hasAny()) << "what was popped is of an earlier lap";
}

// The halves of a long request may arrive in either order.
TEST(Fifo, AHalfOfALongRequestIsNotTaken) {
  for (const bool isFirstThere : {true, false}) {
    Ring ring(4);
    const port::EncodedRequest encoded = port::encode(longRequest(7));
    ASSERT_EQ(encoded.count, 2u);
    const uint64_t early = isFirstThere ? 0 : 1;
    const auto writeHalf = [&](uint64_t half) {
      ring.write(half, false, encoded.halves[half].first);
      ring.write(half, true, encoded.halves[half].second);
    };
    writeHalf(early);
    port::PortRequest seen;
    EXPECT_FALSE(ring->pop(seen));
    EXPECT_EQ(ring->position(), 0u);
    EXPECT_EQ(ring.tail(), 0u);
    writeHalf(1 - early);
    ASSERT_TRUE(ring->pop(seen));
    expectSame(seen, longRequest(7));
    EXPECT_EQ(ring.tail(), 2u);
  }
}

// A store of 16 bytes may arrive as two: neither word alone says that the slot was written.
TEST(Fifo, OneWordOfAPairIsNotTaken) {
  for (const bool isSecondFirst : {false, true}) {
    Ring ring(2);
    port::PortRequest seen;
    for (uint64_t position = 0; position < 8; ++position) {  // on four laps
      const port::PortRequest given = shortRequest(1000 + position);
      const port::WordPair half = port::encode(given).halves[0];
      ring.write(position, isSecondFirst, isSecondFirst ? half.second : half.first);
      EXPECT_FALSE(ring->pop(seen));
      ring.write(position, !isSecondFirst, isSecondFirst ? half.first : half.second);
      ASSERT_TRUE(ring->pop(seen));
      expectSame(seen, given);
    }
  }
}

// Each word of both halves of a long request, in every order in which four stores can arrive.
TEST(Fifo, ALongRequestIsTakenWithItsLastWordWhicheverThatIs) {
  std::vector<int> order{0, 1, 2, 3};
  do {
    Ring ring(8);
    const port::EncodedRequest encoded = port::encode(longRequest(11));
    for (const int word : order) {
      port::PortRequest seen;
      EXPECT_FALSE(ring->pop(seen));
      const port::WordPair& half = encoded.halves[word / 2];
      ring.write(word / 2, word % 2 != 0, word % 2 != 0 ? half.second : half.first);
    }
    port::PortRequest seen;
    ASSERT_TRUE(ring->pop(seen));
    expectSame(seen, longRequest(11));
  } while (std::next_permutation(order.begin(), order.end()));
}

// A slot says of which lap it is: that of the lap before is not there yet, also as the second half
// of a long request whose first half is new.
TEST(Fifo, ASlotOfTheLapBeforeIsNotTaken) {
  Ring ring(2);
  port::PortRequest seen;
  for (uint64_t lap = 0; lap < 4; ++lap) {
    ASSERT_NE(ring.push(longRequest(lap)), 0u);
    ASSERT_TRUE(ring->pop(seen));
    expectSame(seen, longRequest(lap));
    EXPECT_FALSE(ring->pop(seen)) << "on lap " << lap;
    const port::EncodedRequest next = port::encode(longRequest(100));
    Ring other(2);  // the same again, by hand: only the first half is of the new lap
    for (uint64_t i = 0; i <= lap; ++i) {
      ASSERT_NE(other.push(longRequest(i)), 0u);
      ASSERT_TRUE(other->pop(seen));
    }
    const uint64_t position = 2 * (lap + 1);
    other.write(position, false, next.halves[0].first);
    other.write(position, true, next.halves[0].second);
    EXPECT_FALSE(other->pop(seen));
  }
}

}  // namespace
}  // namespace peerlane
